#include "crew.h"

#include <ATen/Parallel.h>

#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastreader {
namespace {

constexpr int kSpins = 4000; // some 100 microseconds, longer than a leader needs between two sets of tasks
constexpr int kShift = 32; // of a set's number in a ticket
constexpr uint64_t kLeft = (uint64_t{1} << kShift) - 1; // the tasks not yet taken

thread_local Crew* led = nullptr;

// Wait until done() is true; after a while let other threads run, which may be the ones waited for.
template <typename Done>
void wait_until(const Done& done) {
  for (int spins = 0; !done(); ++spins) {
    if (spins >= kSpins) {
      std::this_thread::yield();
      continue;
    }
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
}

} // namespace

Crew* Crew::led_here() { return led; }

void Crew::run(const Tasks& tasks) {
  TORCH_CHECK(tasks.count <= static_cast<int64_t>(kLeft), "too many tasks: ", tasks.count);
  tasks_ = tasks;
  finished_.store(0, std::memory_order_relaxed);
  ticket_.store(++number_ << kShift | static_cast<uint64_t>(tasks.count), std::memory_order_release);
  work(0);
  wait_until([&] { return finished_.load(std::memory_order_acquire) == tasks.count; });
}

int64_t Crew::take() {
  uint64_t ticket = ticket_.load(std::memory_order_relaxed);
  while ((ticket & kLeft) != 0) {
    if (ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acquire, std::memory_order_relaxed)) {
      return tasks_.count - static_cast<int64_t>(ticket & kLeft);
    }
  }
  return -1;
}

void Crew::work(int64_t thread) {
  // The set is read only once a task of it is taken.
  const int64_t first = take();
  if (first < 0) return;
  const int64_t done = tasks_.run(tasks_.context, thread, first);
  finished_.fetch_add(done, std::memory_order_release);
}

void Crew::follow(int64_t thread) {
  const auto called = [&] {
    return (ticket_.load(std::memory_order_relaxed) & kLeft) != 0 || dismissed_.load(std::memory_order_relaxed);
  };
  while (!dismissed_.load(std::memory_order_acquire)) {
    work(thread);
    wait_until(called);
  }
}

void Crew::dismiss() { dismissed_.store(true, std::memory_order_release); }

void with_crew(void (*body)(const void*), const void* context) {
  if (led != nullptr) return body(context);
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  Crew crew(threads);
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t) {
    if (begin > 0) return crew.follow(begin);
    struct Lead {
      Crew& crew;
      explicit Lead(Crew& c) : crew(c) { led = &c; }
      ~Lead() {
        led = nullptr;
        crew.dismiss();
      }
    } lead(crew);
    body(context);
  });
}

} // namespace fastreader
