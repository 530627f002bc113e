#include "manifest.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <queue>
#include <set>

#include "info_fields.hpp"
#include "potato/core/xxh3.hpp"

namespace potato {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view hash_head = R"({"xxh3":")";
constexpr std::int64_t most_block_bytes = std::int64_t{16} << 20;
constexpr std::int64_t most_elems = std::int64_t{1} << 55;  // so that bytes never overflow

// --- Writing ---

Json info_json(const CheckpointInfo& info) {
  Json json;
  for (const auto& [name, field] : info_numbers) json[name] = info.*field;
  for (const auto& [name, field] : info_texts) json[name] = info.*field;
  return json;
}

Json tensors_json(const std::vector<StoredTensor>& tensors) {
  Json json = Json::array();
  for (const StoredTensor& tensor : tensors) {
    Json shape = {tensor.shape[0]};
    if (tensor.shape.num_dims() == 2) shape.push_back(tensor.shape[1]);
    json.push_back({{"name", tensor.name}, {"dtype", dtype_name(tensor.dtype)}, {"shape", shape}});
  }
  return json;
}

Json files_json(const std::vector<ShardFile>& files) {
  Json json = Json::array();
  for (const ShardFile& file : files) {
    Json blocks = Json::array();
    for (const FileBlock& block : file.blocks) {
      blocks.push_back({block.offset_bytes, block.num_bytes, hash_text(block.hash)});
    }
    json.push_back(
        {{"name", file.name}, {"bytes", file.num_bytes}, {"xxh3", hash_text(file.hash)}, {"blocks", blocks}});
  }
  return json;
}

// [tensor, file, begin, begin, count, count, offset, hash]
Json pieces_json(const std::vector<ManifestPiece>& pieces) {
  Json json = Json::array();
  for (const ManifestPiece& piece : pieces) {
    json.push_back({piece.tensor, piece.file, piece.begin[0], piece.begin[1], piece.count[0], piece.count[1],
                    piece.offset_bytes, hash_text(piece.hash)});
  }
  return json;
}

// --- Reading ---

// A number of at least `least` and at most `most`.
std::int64_t integer(const Json& json, std::int64_t least, std::int64_t most, const char* what) {
  if (!json.is_number_integer()) throw Error(cat(what, " is no integer"));
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
    throw Error(cat(what, " is too large"));
  }
  const auto value = json.get<std::int64_t>();
  if (value < least || value > most) throw Error(cat(what, " = ", value, " is not in [", least, ", ", most, "]"));
  return value;
}

const Json& member(const Json& json, const char* name) {
  if (!json.is_object() || !json.contains(name)) throw Error(cat(name, " is missing"));
  return json.at(name);
}

const Json& list(const Json& json, const char* name) {
  const Json& value = member(json, name);
  if (!value.is_array()) throw Error(cat(name, " is no list"));
  return value;
}

std::string text(const Json& json, const char* name) {
  const Json& value = member(json, name);
  if (!value.is_string()) throw Error(cat(name, " is no text"));
  return value.get<std::string>();
}

std::uint64_t hash(const Json& json, const char* what) {
  std::uint64_t value = 0;
  if (!json.is_string() || !parse_hash(json.get_ref<const std::string&>(), value))
    throw Error(cat(what, " is no hash"));
  return value;
}

CheckpointInfo info_of(const Json& json) {
  CheckpointInfo info;
  for (const auto& [name, field] : info_numbers) info.*field = integer(member(json, name), 0, INT64_MAX, name);
  for (const auto& [name, field] : info_texts) info.*field = text(json, name);
  return info;
}

StoredTensor tensor_of(const Json& json) {
  StoredTensor tensor;
  tensor.name = text(json, "name");
  if (tensor.name.empty() || tensor.name.front() != '/') throw Error("a tensor's name does not begin with /");
  const std::string dtype = text(json, "dtype");
  if (dtype != dtype_name(DType::f32) && dtype != dtype_name(DType::f64)) throw Error(cat("unknown dtype ", dtype));
  tensor.dtype = dtype == dtype_name(DType::f32) ? DType::f32 : DType::f64;
  const Json& shape = list(json, "shape");
  if (shape.empty() || shape.size() > 2) throw Error(cat(tensor.name, " has ", shape.size(), " dims"));
  const std::int64_t rows = integer(shape[0], 0, most_elems, "a shape");
  const std::int64_t columns = shape.size() == 2 ? integer(shape[1], 0, most_elems, "a shape") : 1;
  if (columns > 0 && rows > most_elems / columns) throw Error(cat(tensor.name, " is too large"));
  tensor.shape = shape.size() == 2 ? Shape{rows, columns} : Shape{rows};
  return tensor;
}

ShardFile file_of(const Json& json) {
  ShardFile file;
  file.name = text(json, "name");
  if (file.name.empty() || file.name.front() == '.' || file.name.find('/') != std::string::npos) {
    throw Error(cat("\"", file.name, "\" is no file name"));
  }
  file.num_bytes = integer(member(json, "bytes"), 0, most_elems * 8, "a file's bytes");
  file.hash = hash(member(json, "xxh3"), "a file's xxh3");
  for (const Json& block : list(json, "blocks")) {
    if (!block.is_array() || block.size() != 3) throw Error("a block is no list of three");
    file.blocks.push_back({integer(block[0], 0, file.num_bytes, "a block's offset"),
                           integer(block[1], 1, most_block_bytes, "a block's bytes"),
                           hash(block[2], "a block's hash")});
  }
  return file;
}

ManifestPiece piece_of(const Json& json, const Manifest& manifest) {
  if (!json.is_array() || json.size() != 8) throw Error("a piece is no list of eight");
  const auto index = [&](std::size_t i, std::size_t num, const char* what) {
    return static_cast<int>(integer(json[i], 0, static_cast<std::int64_t>(num) - 1, what));
  };
  ManifestPiece piece;
  piece.tensor = index(0, manifest.tensors.size(), "a piece's tensor");
  piece.file = index(1, manifest.files.size(), "a piece's file");
  const StoredTensor& tensor = manifest.tensors[static_cast<std::size_t>(piece.tensor)];
  const std::array<std::int64_t, 2> extent = {tensor.shape[0], tensor.num_columns()};
  for (std::size_t dim = 0; dim < 2; ++dim) {
    piece.begin[dim] = integer(json[2 + dim], 0, extent[dim], "a piece's begin");
    piece.count[dim] = integer(json[4 + dim], 1, extent[dim] - piece.begin[dim], "a piece's count");
  }
  piece.offset_bytes = integer(json[6], -1, most_elems * 8, "a piece's offset");
  piece.hash = hash(json[7], "a piece's hash");
  return piece;
}

// Whether slabs of one tensor overlap: a sweep over rows, with the columns that are taken.
bool overlaps(std::vector<ManifestPiece> pieces) {
  std::sort(pieces.begin(), pieces.end(),
            [](const ManifestPiece& a, const ManifestPiece& b) { return a.begin < b.begin; });
  std::map<std::int64_t, std::int64_t> taken;  // first column -> end
  using Ending = std::pair<std::int64_t, std::int64_t>;
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> endings;  // end row, first column
  for (const ManifestPiece& piece : pieces) {
    while (!endings.empty() && endings.top().first <= piece.begin[0]) {
      taken.erase(endings.top().second);
      endings.pop();
    }
    const std::int64_t end = piece.begin[1] + piece.count[1];
    const auto next = taken.lower_bound(piece.begin[1]);
    if (next != taken.end() && next->first < end) return true;
    if (next != taken.begin() && std::prev(next)->second > piece.begin[1]) return true;
    taken.emplace(piece.begin[1], end);
    endings.emplace(piece.begin[0] + piece.count[0], piece.begin[1]);
  }
  return false;
}

void check_tensors(const Manifest& manifest) {
  std::vector<std::vector<ManifestPiece>> pieces(manifest.tensors.size());
  for (const ManifestPiece& piece : manifest.pieces) pieces[static_cast<std::size_t>(piece.tensor)].push_back(piece);
  std::set<std::string> names;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const StoredTensor& tensor = manifest.tensors[i];
    if (!names.insert(tensor.name).second) throw Error(cat(tensor.name, " is there twice"));
    std::int64_t num_elems = 0;
    for (const ManifestPiece& piece : pieces[i]) {
      num_elems += piece.num_elems();
      if (num_elems > most_elems) break;
    }
    if (num_elems != tensor.shape.num_elems() || overlaps(pieces[i])) {
      throw Error(cat("the pieces of ", tensor.name, " do not make up its shape ", tensor.shape));
    }
  }
}

void check_files(Manifest& manifest) {
  std::set<std::string> names;
  std::vector<std::vector<FileBlock>> parts(manifest.files.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i] = manifest.files[i].blocks;
    if (!names.insert(manifest.files[i].name).second) throw Error(cat(manifest.files[i].name, " is there twice"));
  }
  for (const ManifestPiece& piece : manifest.pieces) {
    if (piece.offset_bytes < 0) continue;
    parts[static_cast<std::size_t>(piece.file)].push_back(
        {piece.offset_bytes, manifest.piece_bytes(piece), piece.hash});
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ShardFile& file = manifest.files[i];
    const std::uint64_t all = combined_hash(parts[i]);
    std::int64_t end = 0;
    for (const FileBlock& part : parts[i]) {
      if (part.offset_bytes != end) throw Error(cat("the parts of ", file.name, " do not make up the file"));
      end += part.num_bytes;
    }
    if (end != file.num_bytes) throw Error(cat("the parts of ", file.name, " do not make up the file"));
    if (all != file.hash) throw Error(cat("the hash of ", file.name, " is not that of its parts"));
  }
}

}  // namespace

std::int64_t Manifest::piece_bytes(const ManifestPiece& piece) const {
  return piece.num_elems() * dtype_bytes(tensors[static_cast<std::size_t>(piece.tensor)].dtype);
}

std::string dataset_name(const StoredTensor& tensor, const std::array<std::int64_t, 2>& begin) {
  return tensor.shape.num_dims() == 2 ? cat(tensor.name, "/", begin[0], "_", begin[1])
                                      : cat(tensor.name, "/", begin[0]);
}

std::string Manifest::dataset_name(const ManifestPiece& piece) const {
  return potato::dataset_name(tensors[static_cast<std::size_t>(piece.tensor)], piece.begin);
}

std::string Manifest::place_of(const ManifestPiece& piece) const {
  return cat(files[static_cast<std::size_t>(piece.file)].name, ", dataset ", dataset_name(piece));
}

std::int64_t Manifest::total_bytes() const {
  return std::accumulate(files.begin(), files.end(), std::int64_t{0},
                         [](std::int64_t sum, const ShardFile& file) { return sum + file.num_bytes; });
}

std::uint64_t combined_hash(std::vector<FileBlock>& parts) {
  static_assert(sizeof(FileBlock) == 24, "hashed as it lies in memory");
  std::sort(parts.begin(), parts.end(),
            [](const FileBlock& a, const FileBlock& b) { return a.offset_bytes < b.offset_bytes; });
  return xxh3(parts.data(), static_cast<std::int64_t>(parts.size() * sizeof(FileBlock)));
}

std::vector<FileBlock> uncovered_blocks(const std::vector<FileBlock>& parts, std::int64_t num_bytes) {
  std::vector<FileBlock> blocks;
  std::int64_t done = 0;
  const auto cover_up_to = [&](std::int64_t end) {
    for (; done < end; done += blocks.back().num_bytes) {
      blocks.push_back({done, std::min(most_block_bytes, end - done), 0});
    }
  };
  for (const FileBlock& part : parts) {
    cover_up_to(part.offset_bytes);
    done = part.offset_bytes + part.num_bytes;
  }
  cover_up_to(num_bytes);
  return blocks;
}

std::vector<FileBlock> piece_parts(const Manifest& manifest, int file) {
  std::vector<FileBlock> parts;
  for (const ManifestPiece& piece : manifest.pieces) {
    if (piece.file != file || piece.offset_bytes < 0) continue;
    parts.push_back({piece.offset_bytes, manifest.piece_bytes(piece), piece.hash});
  }
  return parts;
}

std::string manifest_text(const Manifest& manifest) {
  const Json json = {
      {"format", "PotatoChat checkpoint"},
      {"format_version", checkpoint_format_version},
      {"info", info_json(manifest.info)},
      {"index", {{"name", index_name}, {"bytes", manifest.index.num_bytes}, {"xxh3", hash_text(manifest.index.hash)}}},
      {"tensors", tensors_json(manifest.tensors)},
      {"files", files_json(manifest.files)},
      {"pieces", pieces_json(manifest.pieces)}};
  // Texts of the environment need not be UTF-8.
  std::string rest = "\",\n" + json.dump(-1, ' ', false, Json::error_handler_t::replace).substr(1) + "\n";
  return std::string(hash_head) + hash_text(xxh3(rest)) + rest;
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  constexpr std::size_t hash_digits = 16;
  const auto damaged = [&](const std::string& why) {
    return DamageError(cat("checkpoint ", path, " is damaged: ", why));
  };
  std::uint64_t expected = 0;
  if (text.size() < hash_head.size() + hash_digits || !text.starts_with(hash_head) ||
      !parse_hash(std::string_view(text).substr(hash_head.size(), hash_digits), expected)) {
    throw damaged("it does not begin with its own hash");
  }
  const std::uint64_t found = xxh3(std::string_view(text).substr(hash_head.size() + hash_digits));
  if (found != expected) {
    throw damaged(cat("its hash is ", hash_text(found), ", ", hash_text(expected), " was written"));
  }
  std::int64_t format = 0;
  try {
    const Json json = Json::parse(text);
    format = integer(member(json, "format_version"), 1, INT64_MAX, "format_version");
    if (format == checkpoint_format_version) {
      Manifest manifest;
      manifest.info = info_of(member(json, "info"));
      const Json& index = member(json, "index");
      manifest.index = {0, integer(member(index, "bytes"), 0, INT64_MAX, "the index's bytes"),
                        hash(member(index, "xxh3"), "the index's xxh3")};
      for (const Json& tensor : list(json, "tensors")) manifest.tensors.push_back(tensor_of(tensor));
      for (const Json& file : list(json, "files")) manifest.files.push_back(file_of(file));
      for (const Json& piece : list(json, "pieces")) manifest.pieces.push_back(piece_of(piece, manifest));
      check_tensors(manifest);
      check_files(manifest);
      return manifest;
    }
  } catch (const std::exception& error) {
    throw damaged(error.what());
  }
  throw ConfigError(cat("checkpoint ", path, " has format ", format, ", this program reads format ",
                        checkpoint_format_version,
                        format > checkpoint_format_version ? "; a newer potatochat wrote it, use that one or a later"
                                                           : "; an older potatochat wrote it, use that one"));
}

}  // namespace potato
