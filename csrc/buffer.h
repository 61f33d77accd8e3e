// Memory that is used again, since a step of writing would otherwise allocate hundreds of small tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

namespace fastreader {

class Buffer {
 public:
  // Return `bytes` bytes aligned to 64; those returned before are lost.
  char* of(int64_t bytes) {
    if (!memory_.defined() || memory_.numel() < bytes + kAlign) memory_ = at::empty({bytes + kAlign}, at::kByte);
    const auto first = reinterpret_cast<uintptr_t>(memory_.data_ptr());
    return reinterpret_cast<char*>((first + kAlign - 1) / kAlign * kAlign);
  }

 private:
  static constexpr int64_t kAlign = 64;
  at::Tensor memory_;
};

} // namespace fastreader
