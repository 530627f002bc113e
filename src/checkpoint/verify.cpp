#include "potato/checkpoint/verify.hpp"

#include "manifest.hpp"
#include "potato/core/allocations.hpp"
#include "potato/core/xxh3.hpp"
#include "reading.hpp"

namespace potato {

namespace {

// A piece's hash, from the file.
std::uint64_t hash_of(const Manifest& manifest, const ManifestPiece& piece, ShardReader& reader) {
  const std::int64_t num_bytes = manifest.piece_bytes(piece);
  if (piece.offset_bytes >= 0) return reader.hash(piece.file, piece.offset_bytes, num_bytes);
  std::vector<char> values(static_cast<std::size_t>(num_bytes));
  read_compressed(reader.path(piece.file), manifest.dataset_name(piece),
                  manifest.tensors[static_cast<std::size_t>(piece.tensor)], values.data());
  return xxh3(values.data(), num_bytes);
}

// Hashes this rank's share of the pieces with (without) an offset.
void check_pieces(const std::string& folder, const Manifest& manifest, const HostGroup& group, bool with_offset,
                  ShardReader& reader, Problems& problems) {
  const auto num_ranks = static_cast<std::size_t>(group.num_ranks());
  for (auto i = static_cast<std::size_t>(group.rank()); i < manifest.pieces.size(); i += num_ranks) {
    const ManifestPiece& piece = manifest.pieces[i];
    if ((piece.offset_bytes >= 0) != with_offset) continue;
    const auto damaged = [&](const std::string& why) {
      problems.add(cat("checkpoint ", folder, " is damaged: ", manifest.place_of(piece), ": ", why));
    };
    try {
      const std::uint64_t found = hash_of(manifest, piece, reader);
      if (found != piece.hash) damaged(wrong_hash(found, piece.hash));
    } catch (const std::exception& error) {
      damaged(error.what());
    }
  }
}

}  // namespace

VerifyReport verify_checkpoint(const std::string& folder, const HostGroup& group) {
  const LibraryScope library;
  VerifyReport report;
  report.folder = folder;
  try {
    const Manifest manifest = read_manifest(folder, group);
    report.info = manifest.info;
    report.num_files = static_cast<int>(manifest.files.size());
    report.num_tensors = static_cast<std::int64_t>(manifest.tensors.size());
    report.num_pieces = static_cast<std::int64_t>(manifest.pieces.size());
    report.num_bytes = manifest.total_bytes();
    group.agree(file_problems(folder, manifest, group));
    ShardReader reader(folder, manifest);
    Problems problems;
    check_pieces(folder, manifest, group, true, reader, problems);
    reader.check_blocks(group.rank(), group.num_ranks(), problems);
    group.agree(problems.texts());
    check_pieces(folder, manifest, group, false, reader, problems);  // HDF5 opens files only now
    const std::string index = index_problem(folder, manifest, group);
    if (!index.empty() && group.rank() == 0) {
      problems.add(
          cat("checkpoint ", folder, ": ", index, "; only other programs need it, the checkpoint can be loaded"));
    }
    group.agree(problems.texts());
  } catch (const ConfigError& error) {
    report.problems = error.problems();
  }
  return report;
}

}  // namespace potato
