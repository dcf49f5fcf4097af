// Written by `python -m benchmarks.cpu_rule fit` from benchmarks/results/cpu-routes.json.
#pragma once

#include <array>

namespace wnfused {

constexpr int kTerms = 9;
using Terms = std::array<double, kTerms>;

struct Constants {
  Terms vendor, patches, direct;  // microseconds per unit of each term (plan.cpp)
};

constexpr std::array<Constants, 3> kConstants{{  // y, dx, dw
    {{36.18, 0.2257, 0.2483, 0.4039, 0.08133, 0, 0, 3.068, 0}, {13.42, 0.5617, 1.541, 0.04752, 0, 0, 0.1298, 0.05605, 0}, {10.82, 0.2029, 0.104, 0.05527, 0.02575, 0, 0, 0.09864, 0}},
    {{35.55, 0.2064, 0.5506, 0.4735, 0.01356, 0.04361, 0.137, 0, 0}, {19.63, 0.6141, 1.276, 0.1168, 0.1688, 0, 0, 0.0008517, 0}, {15.31, 0.1918, 0.1287, 0.06225, 0.01343, 0.01148, 0, 0.1357, 0}},
    {{39.96, 0.2473, 0.3818, 0.586, 0, 0, 0.234, 1.988, 0}, {20.83, 0.5252, 1.164, 0.2167, 0.1066, 0, 0.1762, 1.346, 0}, {20.1, 0.18, 0.1486, 0.5504, 0.333, 0.141, 2.94, 0, 0}},
}};

}  // namespace wnfused
