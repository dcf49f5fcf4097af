// What the cost of a route consists of. Its price per unit is in plan_constants.h.
#pragma once

#include "plan.h"
#include "plan_constants.h"

namespace wnfused {

// One call, thousands of cycles of arithmetic, and thousands of elements read, written, copied or mapped, per thread. The
// terms differ between torch's convolution, patches and the direct kernels.
Terms terms_of(Product product, Route route, const Problem& problem, int64_t threads);

}  // namespace wnfused
