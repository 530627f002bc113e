// Which files a run reads: expands `data.path` and tells text from token files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace potato {

enum class SourceKind : std::uint8_t { text, tokens };

// Expands a comma-separated list of files and globs (glob(3)) into file names: the list's order, sorted within a glob.
// Blanks around an entry are dropped; an entry that exists as written is never taken as a glob; a name with a comma
// can only be reached through a glob. Throws ConfigError that names every entry without a match and every file that is
// missing, unreadable, empty, not a regular file, or named twice (its text would leak between train and validation).
std::vector<std::string> expand_paths(const std::string& data_path);

// `tokens` if all files are token files (their names end in ".bin"), `text` if none is. Throws ConfigError for a mix.
SourceKind source_kind(const std::vector<std::string>& files);

}  // namespace potato
