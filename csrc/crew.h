// Threads that stay awake from one set of tasks to the next.
//
// A step of writing is some 150 short sets of tasks. at::parallel_for wakes and dismisses its threads for each, which
// takes longer than a small product. Within `with_crew` they are woken once, and `run_tasks` hands them set after set.
#pragma once

#include <atomic>
#include <cstdint>

#include "buffer.h"

namespace fastreader {

class Crew;

// A set of tasks. `run` does task `first` on a thread of the crew, then those it takes, and returns how many.
struct Tasks {
  int64_t count;
  int64_t (*run)(const void* context, int64_t thread, int64_t first);
  const void* context;
};

// One set of tasks at a time. `ticket_` is the number of the set, and how many of its tasks are not yet taken. A set
// stays as it is until every task taken is finished, so a thread that comes late, or never, does no harm.
class Crew {
 public:
  explicit Crew(int64_t threads) : threads_(threads) {}

  // The crew that this thread leads, or null.
  static Crew* led_here();

  int64_t threads() const { return threads_; }

  // Return memory for one set of tasks, aligned to 64 bytes.
  char* memory(int64_t bytes) { return memory_.of(bytes); }

  // Run a set of tasks on all threads, this one included; only the leader calls it.
  void run(const Tasks& tasks);

  // Take the next task, or return -1 if none is left.
  int64_t take();

  // Do tasks until the crew is dismissed.
  void follow(int64_t thread);
  void dismiss();

 private:
  void work(int64_t thread);

  const int64_t threads_;
  Buffer memory_;
  Tasks tasks_{};
  uint64_t number_ = 0;
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> finished_{0};
  std::atomic<bool> dismissed_{false};
};

void with_crew(void (*body)(const void*), const void* context);

// Call body() on this thread, which leads a crew meanwhile: of all threads, or alone within a parallel region.
template <typename Body>
void with_crew(const Body& body) {
  with_crew([](const void* context) { (*static_cast<const Body*>(context))(); }, &body);
}

} // namespace fastreader
