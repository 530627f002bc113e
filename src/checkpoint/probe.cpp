#include "probe.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "h5.hpp"
#include "potato/core/posix_file.hpp"

namespace potato {

namespace {

constexpr unsigned limit_s = 20;

herr_t count_object(hid_t, const char*, const H5O_info_t*, void* count) {
  ++*static_cast<int*>(count);
  return 0;
}

// In the child.
std::string description(const std::string& path) {
  silence_h5();
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file < 0) return "is no HDF5 file, or damaged";
  if (H5Aexists(file, "format_version") > 0) {
    const hid_t attribute = H5Aopen(file, "format_version", H5P_DEFAULT);
    std::int64_t format = 0;
    if (attribute >= 0 && H5Aread(attribute, H5T_NATIVE_INT64, &format) >= 0) {
      return cat("is an HDF5 file of a checkpoint of format ", format, ", without its manifest.json");
    }
  }
  int num_objects = 0;
  if (H5Ovisit(file, H5_INDEX_NAME, H5_ITER_NATIVE, count_object, &num_objects) < 0) return "is a damaged HDF5 file";
  return cat("is an HDF5 file with ", num_objects, " objects, but no checkpoint: it has no manifest.json");
}

}  // namespace

std::string probe_file(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return cat("cannot be found: ", system_words(errno));
  if (!S_ISREG(facts.st_mode)) return "is no file";
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return cat("cannot be looked at: ", system_words(errno));
  const FileDescriptor in(ends[0]);
  FileDescriptor out(ends[1]);
  const pid_t child = fork();
  if (child < 0) return cat("cannot be looked at: ", system_words(errno));
  if (child == 0) {
    for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGALRM, SIGTERM}) std::signal(number, SIG_DFL);
    alarm(limit_s);
    const std::string text = description(path);
    const ssize_t written = write(out.get(), text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  out = FileDescriptor();
  std::array<char, 512> text{};
  std::size_t num_bytes = 0;
  try {
    num_bytes = read_up_to(in, path, text.data(), text.size());
  } catch (const IoError&) {
    num_bytes = 0;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && num_bytes > 0) return {text.data(), num_bytes};
  return "is damaged so that HDF5 cannot even be asked about it";
}

}  // namespace potato
