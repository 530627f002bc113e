#include "potato/modes/train.hpp"

#include "potato/comm/abort.hpp"
#include "potato/train/trainer.hpp"

namespace potato {

int train_mode(const Config& config, const HostGroup& world, const std::string& command_line,
               const std::string& config_given) {
  install_signal_handlers();
  RunContext run;
  run.command_line = command_line;
  run.config_given = config_given;
  run.on_fatal = [timeout_s = config.run.abort_timeout_s](const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& failure) {
      abort_job(failure.what(), timeout_s);
    } catch (...) {
      abort_job("unknown error", timeout_s);
    }
  };
  Trainer trainer(config, world, run);
  return trainer.run();
}

}  // namespace potato
