// Shared by the ops: choice of kernels, and tasks for threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/Parallel.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>

#if defined(__APPLE__) && !defined(_OPENMP)
#include <dispatch/dispatch.h>
#endif

#include "crew.h"
#include "kernels.h"

namespace fastreader {

// Return the named instruction set, or the best for "auto"; throw if the name is unknown or the machine lacks it.
Isa resolve_isa(const std::string& name);

// Return the kernels of the best instruction set up to `isa` for operands of `mode`. If a CPU has no bf16 products
// (before AVX-512 BF16, or BF16 of ARM), bf16 operands of any mode are widened to fp32, which is faster there and at
// least as exact.
const Kernels& kernels_for(Isa isa, Mode mode);

// How an op multiplies float32 operands: "bf16x3" as sums of two bf16 terms, with errors near float32's; "float32" as
// they are, whatever the type of the weight; "int16" as scaled integers, in linear layers only; nothing as the op does by
// default.
using InputPrecision = std::optional<c10::string_view>;

inline bool is_bf16x3(const InputPrecision& input_precision) {
  const bool known = !input_precision.has_value() || *input_precision == "bf16x3" || *input_precision == "float32";
  TORCH_CHECK(known, "input_precision: expected \"bf16x3\", \"float32\" or None, got ",
              std::string(input_precision.value_or("")));
  return input_precision == "bf16x3";
}

inline bool is_float32(const InputPrecision& input_precision) {
  return !is_bf16x3(input_precision) && input_precision.has_value();
}

// Run work(i) for i from 0 to threads - 1, each in a thread of its own if it is free.
template <typename Work>
void on_threads(int64_t threads, const Work& work) {
#if defined(__APPLE__) && !defined(_OPENMP)
  // Apple's compiler comes without OpenMP, and at::parallel_for compiled so has one thread.
  dispatch_apply_f(static_cast<size_t>(threads), DISPATCH_APPLY_AUTO, const_cast<Work*>(&work),
                   [](void* context, size_t i) { (*static_cast<const Work*>(context))(static_cast<int64_t>(i)); });
#else
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(i);
  });
#endif
}

constexpr int64_t kClearedBytes = 64; // of each thread's workspace, before its first task

inline void clear_workspace(char* workspace, int64_t bytes) {
  if (bytes > 0) std::memset(workspace, 0, kClearedBytes);
}

// Run task(i, workspace) for every i on the threads of a crew.
template <typename Task>
void run_tasks_on(Crew& crew, const Kernels& kernels, int64_t count, int64_t bytes, const Task& task) {
  char* const base = crew.memory(crew.threads() * bytes);
  if (count == 1) { // another thread's start would only be waited for
    clear_workspace(base, bytes);
    kernels.enter();
    task(0, base);
    return kernels.leave();
  }
  const auto work = [&](int64_t thread, int64_t first) {
    int64_t done = 0;
    clear_workspace(base + thread * bytes, bytes);
    kernels.enter();
    for (int64_t i = first; i >= 0; i = crew.take(), ++done) task(i, base + thread * bytes);
    kernels.leave();
    return done;
  };
  using Work = decltype(work);
  crew.run({count, [](const void* context, int64_t thread, int64_t first) {
              return (*static_cast<Work*>(context))(thread, first);
            }, &work});
}

// Run task(i, workspace) for every i, with a workspace of each thread, 4096 bytes or more unless none is asked for;
// tasks start in order, each on a free thread. Tasks are independent, so results
// depend neither on the number of threads nor on the order.
template <typename Task>
void run_tasks(const Kernels& kernels, int64_t count, int64_t workspace_bytes, const Task& task) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), count);
  if (threads < 1) return;
  const int64_t bytes = round_up(workspace_bytes, 4096);
  if (Crew* crew = Crew::led_here()) return run_tasks_on(*crew, kernels, count, bytes, task);
  const at::Tensor memory = at::empty({threads * bytes + 64}, at::kByte);
  char* base = reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(memory.data_ptr()), 64));
  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int64_t thread) {
    clear_workspace(base + thread * bytes, bytes);
    kernels.enter();
    for (int64_t i = next++; i < count; i = next++) task(i, base + thread * bytes);
    kernels.leave();
  });
}

// Run run(begin, count, memory) for blocks of rows with `run_tasks`; the last block has the remaining rows.
template <typename Run>
void run_blocks(const Kernels& kernels, int64_t rows, int64_t block, int64_t workspace_bytes, const Run& run) {
  run_tasks(kernels, (rows + block - 1) / block, workspace_bytes, [&](int64_t task, void* workspace) {
    run(task * block, std::min(block, rows - task * block), static_cast<char*>(workspace));
  });
}

// Return a tensor as rows [token, head] of float or bf16; `head_axis` is -1 for a matrix.
inline Source source_of(const at::Tensor& tensor, int64_t head_axis) {
  return {tensor.data_ptr(), tensor.scalar_type() == at::kBFloat16, tensor.stride(0),
          head_axis < 0 ? 0 : tensor.stride(head_axis)};
}

// Return the values of one number per head, or null without any.
inline const float* head_values(const std::optional<at::Tensor>& values, int64_t heads, const char* name) {
  if (!values.has_value()) return nullptr;
  TORCH_CHECK(values->scalar_type() == at::kFloat && values->dim() == 1 && values->size(0) == heads &&
                  values->is_contiguous(),
              name, " must be contiguous float32 [", heads, "], got ", values->scalar_type(), " ", values->sizes());
  return values->const_data_ptr<float>();
}

// Return the tensor, or a copy if its rows are not contiguous.
inline at::Tensor with_contiguous_rows(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 || tensor.size(-1) <= 1 ? tensor : tensor.contiguous();
}

} // namespace fastreader
