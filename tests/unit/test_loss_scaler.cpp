#include <vector>

#include "potato/core/error.hpp"
#include "potato/optim/loss_scaler.hpp"
#include "support/catch.hpp"

using namespace potato;

namespace {

PrecisionConfig fp16_config() {
  PrecisionConfig config;
  config.dtype = Precision::fp16;
  config.initial_scale_power = 10;
  config.loss_scale_window = 4;
  config.hysteresis = 1;
  return config;
}

void repeat(LossScaler& scaler, int count, bool overflowed) {
  for (int i = 0; i < count; ++i) scaler.update(overflowed);
}

}  // namespace

TEST_CASE("other dtypes than fp16 are not scaled", "[loss-scaler]") {
  LossScaler scaler(PrecisionConfig{});
  repeat(scaler, 100, true);
  CHECK(!scaler.is_active());
  CHECK(scaler.scale() == 1);
  CHECK(!scaler.gave_up());
}

TEST_CASE("an overflow halves the scale, a window without one doubles it", "[loss-scaler]") {
  LossScaler scaler(fp16_config());
  CHECK(scaler.scale() == 1024);
  scaler.update(true);
  CHECK(scaler.scale() == 512);
  repeat(scaler, 3, false);
  CHECK(scaler.scale() == 512);
  scaler.update(false);
  CHECK(scaler.scale() == 1024);
  repeat(scaler, 3, false);
  scaler.update(true);  // the window starts again
  CHECK(scaler.scale() == 512);
  repeat(scaler, 3, false);
  CHECK(scaler.scale() == 512);
  scaler.update(false);
  CHECK(scaler.scale() == 1024);
}

TEST_CASE("hysteresis delays the first halving, and a window restores it", "[loss-scaler]") {
  PrecisionConfig config = fp16_config();
  config.hysteresis = 2;
  LossScaler scaler(config);
  scaler.update(true);
  CHECK(scaler.scale() == 1024);
  scaler.update(true);
  CHECK(scaler.scale() == 512);
  scaler.update(true);
  CHECK(scaler.scale() == 256);
  repeat(scaler, 4, false);
  CHECK(scaler.scale() == 512);
  scaler.update(true);
  CHECK(scaler.scale() == 512);
  scaler.update(true);
  CHECK(scaler.scale() == 256);
}

TEST_CASE("the scale has a floor, and skips in a row a limit", "[loss-scaler]") {
  PrecisionConfig config = fp16_config();
  config.min_loss_scale = 100;
  config.consecutive_skips_limit = 6;
  LossScaler scaler(config);
  repeat(scaler, 5, true);
  CHECK(scaler.scale() == 100);
  CHECK(!scaler.gave_up());
  scaler.update(false);
  repeat(scaler, 5, true);
  CHECK(!scaler.gave_up());
  scaler.update(true);
  CHECK(scaler.gave_up());
}

TEST_CASE("a fixed scale stays, and counts skips", "[loss-scaler]") {
  PrecisionConfig config = fp16_config();
  config.loss_scale = 48;
  config.consecutive_skips_limit = 2;
  LossScaler scaler(config);
  repeat(scaler, 2, true);
  CHECK(scaler.scale() == 48);
  CHECK(scaler.gave_up());
  repeat(scaler, 9, false);
  CHECK(scaler.scale() == 48);
  scaler.restore({1024, 1, 1, 0});
  CHECK(scaler.scale() == 48);
}

TEST_CASE("case-15: a restored scaler goes on as if it had never stopped", "[loss-scaler]") {
  PrecisionConfig config = fp16_config();
  config.hysteresis = 2;
  const std::vector<bool> overflows = {false, true, false, false, false, false, true, true, false, false,
                                       true,  true, false, false, false, false, true, true, true,  false};
  for (std::size_t stop = 0; stop <= overflows.size(); ++stop) {
    LossScaler straight(config);
    LossScaler resumed(config);
    for (std::size_t i = 0; i < overflows.size(); ++i) {
      if (i == stop) {
        LossScaler next(config);
        next.restore(resumed.state());
        resumed = next;
      }
      straight.update(overflows[i]);
      resumed.update(overflows[i]);
    }
    CHECK(straight.scale() == resumed.scale());
    CHECK(straight.state().steps_since_overflow == resumed.state().steps_since_overflow);
  }
  LossScaler scaler(config);
  CHECK_THROWS_AS(scaler.restore({0, 0, 1, 0}), Error);
  CHECK_THROWS_AS(scaler.restore({1, 0, 0, 0}), Error);
}
