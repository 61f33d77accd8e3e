// A stand-in for libcudart.so.13 on the host: device memory is host memory, streams are queues that run only when
// somebody waits for them, and kernels do nothing. Work handed in from Python (fakegpu_enqueue) runs in its place in a
// queue or in a graph. This file has the queues and the devices.
#include "cudart.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace standin {

thread_local int current_device = 0;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
thread_local cudaError_t last_error = cudaSuccess;
std::vector<Capture*> captures;
std::set<Stream*> streams;
size_t used_bytes[kMostDevices];

namespace {

std::recursive_mutex mutex;
void (*python_callback)(long) = nullptr;

// Python's functions, if this process has Python: the library does not link to it.
template <typename Function>
Function python_function(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

Stream* default_stream(int device) {
  static Stream* all = [] {
    auto* made = new Stream[kMostDevices];
    for (int i = 0; i < kMostDevices; i++) made[i].device = i;
    return made;
  }();
  return &all[device];
}

}  // namespace

Lock::Lock() {
  if (mutex.try_lock()) return;
  static const auto holds_python = python_function<int (*)()>("PyGILState_Check");
  static const auto release = python_function<void* (*)()>("PyEval_SaveThread");
  static const auto acquire = python_function<void (*)(void*)>("PyEval_RestoreThread");
  if (holds_python && holds_python()) {
    void* state = release();
    mutex.lock();
    acquire(state);
  } else {
    mutex.lock();
  }
}

Lock::~Lock() { mutex.unlock(); }

FILE* log_file() {
  static FILE* file = [] {
    const char* path = getenv("FAKEGPU_LOG");
    FILE* opened = path ? fopen(path, "a") : nullptr;
    if (opened) setvbuf(opened, nullptr, _IOLBF, 0);
    return opened;
  }();
  return file;
}

int device_count() {
  static const int count = [] {
    const char* given = getenv("FAKEGPU_DEVICES");
    return given ? std::clamp(atoi(given), 0, kMostDevices) : 1;
  }();
  return count;
}

bool runs_at_once() {
  static const bool eager = getenv("FAKEGPU_EAGER") != nullptr;
  return eager;
}

cudaError_t fail(cudaError_t error, const char* what) {
  last_error = error;
  STANDIN_LOG("error %d %s\n", static_cast<int>(error), what);
  if (getenv("FAKEGPU_ABORT")) abort();
  return error;
}

Stream* stream_of(cudaStream_t handle) {
  // 0, 1 and 2 are the default, the legacy and the per-thread handle.
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return default_stream(current_device);
  return reinterpret_cast<Stream*>(handle);
}

void run(Node& node) {
  switch (node.kind) {
    case Kind::kCopy:
      memmove(node.to, node.from, node.bytes);
      if (node.owned) free(const_cast<void*>(node.from));
      break;
    case Kind::kCopyRows:
      for (size_t row = 0; row < node.height; row++) {
        memmove(static_cast<char*>(node.to) + row * node.to_pitch,
                static_cast<const char*>(node.from) + row * node.from_pitch, node.width);
      }
      break;
    case Kind::kFill:
      memset(node.to, node.value, node.bytes);
      break;
    case Kind::kPython:
      if (python_callback) python_callback(node.id);
      break;
    case Kind::kRecord:
      node.event->done = std::max(node.event->done, node.version);
      break;
    case Kind::kWait:
      if (node.event->done < node.version && node.event->stream) {
        flush(node.event->stream, node.event, node.version);
      }
      break;
    case Kind::kHost:
      node.function(node.to);
      break;
    case Kind::kKernel:
      break;
  }
}

void flush(Stream* stream, Event* until, long version) {
  while (!stream->queue.empty()) {
    if (until && until->done >= version) return;
    Node node = stream->queue.front();
    stream->queue.pop_front();
    run(node);
  }
}

void flush_all() {
  for (int device = 0; device < device_count(); device++) flush(default_stream(device));
  const auto all = streams;  // what runs may create streams
  for (Stream* stream : all) flush(stream);
}

void enqueue(Stream* stream, const Node& node) {
  if (stream->capture) {
    stream->capture->graph->nodes.push_back(node);
    return;
  }
  stream->queue.push_back(node);
  if (runs_at_once()) flush(stream);
}

bool forbidden(const char* what) {
  if (capture_mode == cudaStreamCaptureModeRelaxed) return false;
  bool found = false;
  for (Capture* capture : captures) {
    const bool all_threads =
        capture->mode == cudaStreamCaptureModeGlobal && capture_mode == cudaStreamCaptureModeGlobal;
    const bool this_thread =
        capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread == std::this_thread::get_id();
    if (!all_threads && !this_thread) continue;
    capture->invalid = found = true;
    STANDIN_LOG("capture %llu made invalid by %s\n", capture->id, what);
  }
  return found;
}

cudaError_t invalidate(Stream* stream, cudaError_t error, const char* what) {
  stream->capture->invalid = true;
  return fail(error, what);
}

}  // namespace standin

using namespace standin;

extern "C" {

// ---- for Python

void fakegpu_set_callback(void (*callback)(long)) { python_callback = callback; }

// Queue work of Python's on a device's stream; return whether a capture took it, so that it may run many times.
int fakegpu_enqueue(cudaStream_t handle, int device, long id) {
  Lock lock;
  const int before = current_device;
  current_device = device;
  Stream* stream = stream_of(handle);
  current_device = before;
  Node node{Kind::kPython};
  node.id = id;
  const bool captured = stream->capture != nullptr;
  enqueue(stream, node);
  return captured;
}

void fakegpu_flush() {
  Lock lock;
  flush_all();
}

// Write to a library's workspace as its kernels would, so that memory which is freed too early faults.
void fakegpu_touch(cudaStream_t handle, void* workspace) {
  Lock lock;
  if (!workspace) return;
  Node node{Kind::kFill};
  node.to = workspace;
  node.bytes = 64;
  node.value = 0x5a;
  enqueue(stream_of(handle), node);
}

size_t fakegpu_used(int device) { return used_bytes[device]; }

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice, "set device");
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  memset(out, 0, sizeof *out);
  snprintf(out->name, sizeof out->name, "a pretended NVIDIA H100");
  out->uuid.bytes[0] = static_cast<char>(device + 1);
  out->pciBusID = device + 1;
  out->major = 9;
  out->minor = 0;
  out->totalGlobalMem = kDeviceBytes;
  out->totalConstMem = 65536;
  out->l2CacheSize = 52428800;
  out->memoryBusWidth = 5120;
  out->textureAlignment = 512;
  out->multiProcessorCount = 132;
  out->warpSize = 32;
  out->maxThreadsPerBlock = out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
  out->maxThreadsDim[2] = 64;
  out->maxGridSize[0] = 2147483647;
  out->maxGridSize[1] = out->maxGridSize[2] = 65535;
  out->maxThreadsPerMultiProcessor = 2048;
  out->maxBlocksPerMultiProcessor = 32;
  out->regsPerBlock = out->regsPerMultiprocessor = 65536;
  out->sharedMemPerBlock = kSharedBytes;
  out->sharedMemPerBlockOptin = kMostSharedBytes;
  out->sharedMemPerMultiprocessor = 233472;
  out->reservedSharedMemPerBlock = 1024;
  out->asyncEngineCount = 3;
  out->concurrentKernels = out->unifiedAddressing = out->cooperativeLaunch = out->canMapHostMemory = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *out = 9; break;
    case cudaDevAttrMultiProcessorCount: *out = 132; break;
    case cudaDevAttrWarpSize: *out = 32; break;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *out = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *out = 64; break;
    case cudaDevAttrMaxGridDimX: *out = 2147483647; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *out = 65535; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *out = 2048; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *out = 32; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
    case cudaDevAttrMaxRegistersPerBlock: *out = 65536; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *out = kSharedBytes; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *out = kMostSharedBytes; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *out = 233472; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *out = 1024; break;
    case cudaDevAttrL2CacheSize: *out = 52428800; break;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrUnifiedAddressing: *out = 1; break;
    default: *out = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* out, int, int) {
  *out = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

cudaError_t cudaDeviceGetPCIBusId(char* out, int size, int device) {
  snprintf(out, size, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* out) {
  *out = 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* out) {
  *out = 13000;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Lock lock;
  for (Capture* capture : captures) {
    if (capture->device != current_device) continue;
    capture->invalid = true;
    STANDIN_LOG("capture %llu made invalid by a device synchronisation\n", capture->id);
    return fail(cudaErrorStreamCaptureUnsupported, "device synchronise");
  }
  flush_all();
  return cudaSuccess;
}

// ---- errors

const char* cudaGetErrorName(cudaError_t error) {
  static thread_local char name[40];
  snprintf(name, sizeof name, "cudaError%d", static_cast<int>(error));
  return name;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case 0: return "no error";
    case 900: return "operation not permitted when stream is capturing";
    case 901: return "operation failed due to a previous error during capture";
    case 905: return "dependency created on uncaptured work in another stream";
    default: return "an error of the pretended device";
  }
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- the driver

static int nothing() { return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** out, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  *out = driver ? dlsym(driver, name) : nullptr;
  if (!*out) *out = reinterpret_cast<void*>(nothing);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
