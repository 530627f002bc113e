// CPU back end of kernels/adamw.hpp.
#pragma once

#include <cstdint>

#include "potato/kernels/adamw.hpp"

namespace potato::cpu {

// weight, gradient, exp_avg, exp_avg_sq [num_elems]. working_copy [num_elems] is BFloat16 or Float16; void: there is
// none, else it is written also where the update is skipped. squared_norm [1] is read only where settings.max_norm > 0
// or settings.skip_nonfinite.
template <typename T, typename Copy>
void adamw(T* weight, Copy* working_copy, const T* gradient, T* exp_avg, T* exp_avg_sq, const double* squared_norm,
           const AdamWStep& settings, std::int64_t num_elems);

}  // namespace potato::cpu
