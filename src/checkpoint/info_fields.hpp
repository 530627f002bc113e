// The fields of CheckpointInfo by name, for the manifest and the index.
#pragma once

#include "potato/checkpoint/checkpoint.hpp"

namespace potato {

struct InfoText {
  const char* name;
  std::string CheckpointInfo::*field;
};
struct InfoNumber {
  const char* name;
  std::int64_t CheckpointInfo::*field;
};
inline constexpr InfoText info_texts[] = {{"model_signature", &CheckpointInfo::model_signature},
                                          {"config_given", &CheckpointInfo::config_given},
                                          {"config", &CheckpointInfo::config_ini},
                                          {"command_line", &CheckpointInfo::command_line},
                                          {"environment", &CheckpointInfo::environment},
                                          {"hosts", &CheckpointInfo::hosts},
                                          {"grid", &CheckpointInfo::grid},
                                          {"fingerprint", &CheckpointInfo::fingerprint},
                                          {"versions", &CheckpointInfo::versions},
                                          {"dtype", &CheckpointInfo::dtype},
                                          {"loss_scaler", &CheckpointInfo::loss_scaler}};
inline constexpr InfoNumber info_numbers[] = {{"step", &CheckpointInfo::step},
                                              {"updates", &CheckpointInfo::updates},
                                              {"next_sample", &CheckpointInfo::next_sample},
                                              {"tokens", &CheckpointInfo::tokens}};

}  // namespace potato
