// What the files of the stand-in for libcudart share: one lock, streams as queues of nodes, and captures.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <deque>
#include <set>
#include <thread>
#include <vector>

namespace standin {

constexpr int kMostDevices = 16;
constexpr size_t kDeviceBytes = size_t{80} << 30;
constexpr size_t kPage = 4096;
constexpr size_t kSharedBytes = 49152;  // of a block, without and with cudaFuncSetAttribute
constexpr size_t kMostSharedBytes = 232448;
// The names that the headers lack in some versions of CUDA 13.
constexpr cudaError_t kErrorCapturedWork = static_cast<cudaError_t>(905);
constexpr cudaError_t kErrorCapturedEvent = static_cast<cudaError_t>(907);

struct Stream;
struct Event;

enum class Kind { kCopy, kCopyRows, kFill, kPython, kRecord, kWait, kHost, kKernel };

// One piece of work in a queue or a graph. Which fields count depends on its kind.
struct Node {
  Kind kind;
  void* to = nullptr;  // also the argument of a host function
  const void* from = nullptr;
  size_t bytes = 0;
  size_t width = 0, height = 0, to_pitch = 0, from_pitch = 0;
  int value = 0;
  long id = 0;  // of work that Python keeps
  Event* event = nullptr;
  long version = 0;  // of the event's records
  void (*function)(void*) = nullptr;
  bool owned = false;  // whether `from` is freed after the copy
};

struct Graph {
  std::vector<Node> nodes;
};

struct Capture {
  unsigned long long id;
  Graph* graph;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  int device;
  bool invalid = false;
};

struct Stream {
  int device = 0;
  int priority = 0;
  std::deque<Node> queue;
  Capture* capture = nullptr;
};

// An event is done when its last record has run. Streams may name it after it was destroyed, so none is deleted.
struct Event {
  Stream* stream = nullptr;
  long recorded = 0, done = 0;
  Capture* capture = nullptr;  // in which it was recorded last
};

// The lock of everything here. A thread that holds Python's lock lets go of it while it waits, since the work that the
// owner runs may need Python.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

// FAKEGPU_LOG names the file; without it nothing is written.
FILE* log_file();
#define STANDIN_LOG(...)                                                             \
  do {                                                                               \
    if (FILE* standin_log = standin::log_file()) fprintf(standin_log, __VA_ARGS__);  \
  } while (0)

// The calling thread's state.
extern thread_local int current_device;
extern thread_local cudaStreamCaptureMode capture_mode;
extern thread_local cudaError_t last_error;

extern std::vector<Capture*> captures;  // that have begun and not ended
extern std::set<Stream*> streams;       // besides each device's own
extern size_t used_bytes[kMostDevices];

int device_count();
bool runs_at_once();  // FAKEGPU_EAGER=1

// Keep an error for cudaGetLastError, log it, and return it. FAKEGPU_ABORT=1 ends the process there.
cudaError_t fail(cudaError_t error, const char* what);

// The stream of a handle; the legacy and the default handle are those of the current device.
Stream* stream_of(cudaStream_t handle);

void run(Node& node);
// Run what is in a queue, up to a version of an event if one is given.
void flush(Stream* stream, Event* until = nullptr, long version = 0);
void flush_all();
// Add a node to a queue, or to the graph that the stream is capturing.
void enqueue(Stream* stream, const Node& node);

// Whether a call is one that a capture forbids to this thread; the capture is then invalid.
bool forbidden(const char* what);
// Make a stream's capture, which must exist, invalid, and return the error.
cudaError_t invalidate(Stream* stream, cudaError_t error, const char* what);

}  // namespace standin
