// Memory of the pretended devices: pages of the host with a guard page behind each allocation. Freed pages are never
// used again and may not be touched, so that a use after a free faults where it happens.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>

#include "cudart.h"

namespace standin {
namespace {

struct Allocation {
  size_t bytes;
  int device;
  bool pinned;  // memory of the host
};

std::map<uintptr_t, Allocation> allocations;
std::unordered_map<const void*, size_t> variable_bytes;
std::unordered_map<const void*, void*> variables;

uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// The allocation that a pointer is in, or null for memory that CUDA does not know.
const Allocation* allocation_of(const void* pointer) {
  auto found = allocations.upper_bound(address(pointer));
  if (found == allocations.begin()) return nullptr;
  --found;
  return address(pointer) < found->first + found->second.bytes ? &found->second : nullptr;
}

void* guarded_pages(size_t bytes) {
  const size_t whole = whole_pages(bytes);
  const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* pages = mmap(nullptr, whole + kPage, PROT_READ | PROT_WRITE, kind, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  mprotect(static_cast<char*>(pages) + whole, kPage, PROT_NONE);
  return pages;
}

void forbid_pages(void* pages, size_t bytes) {
  mprotect(pages, whole_pages(bytes), PROT_NONE);
  madvise(pages, whole_pages(bytes), MADV_DONTNEED);
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

// ---- allocations

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *total = kDeviceBytes;
  *free_bytes = kDeviceBytes - used_bytes[current_device];
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** out, size_t bytes) {
  Lock lock;
  if (forbidden("cudaMalloc")) return fail(cudaErrorStreamCaptureUnsupported, "malloc");
  const bool fits = used_bytes[current_device] + bytes <= kDeviceBytes;
  *out = fits ? guarded_pages(bytes) : nullptr;
  if (!*out) return fail(cudaErrorMemoryAllocation, "malloc");
  allocations[address(*out)] = {bytes, current_device, false};
  used_bytes[current_device] += bytes;
  STANDIN_LOG("malloc %p %zu\n", *out, bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  Lock lock;
  if (!pointer) return cudaSuccess;
  if (forbidden("cudaFree")) return fail(cudaErrorStreamCaptureUnsupported, "free");
  flush_all();
  const auto found = allocations.find(address(pointer));
  if (found == allocations.end()) return fail(cudaErrorInvalidValue, "free");
  used_bytes[found->second.device] -= found->second.bytes;
  forbid_pages(pointer, found->second.bytes);
  STANDIN_LOG("free %p %zu\n", pointer, found->second.bytes);
  allocations.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
  Lock lock;
  if (forbidden("cudaHostAlloc")) return fail(cudaErrorStreamCaptureUnsupported, "host alloc");
  *out = guarded_pages(bytes);
  if (!*out) return fail(cudaErrorMemoryAllocation, "host alloc");
  allocations[address(*out)] = {bytes, current_device, true};
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  Lock lock;
  if (!pointer) return cudaSuccess;
  if (forbidden("cudaFreeHost")) return fail(cudaErrorStreamCaptureUnsupported, "free host");
  flush_all();
  const auto found = allocations.find(address(pointer));
  if (found == allocations.end()) return cudaSuccess;
  forbid_pages(pointer, found->second.bytes);
  allocations.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  Lock lock;
  allocations[address(pointer)] = {bytes, current_device, true};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  Lock lock;
  flush_all();
  allocations.erase(address(pointer));
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  Lock lock;
  memset(out, 0, sizeof *out);
  const Allocation* found = allocation_of(pointer);
  if (!found) {
    out->type = cudaMemoryTypeUnregistered;
    out->device = -2;
    return cudaSuccess;
  }
  out->type = found->pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  out->device = found->device;
  out->devicePointer = const_cast<void*>(pointer);
  out->hostPointer = found->pinned ? const_cast<void*>(pointer) : nullptr;
  return cudaSuccess;
}

// ---- copies

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t handle) {
  Lock lock;
  if (!bytes) return cudaSuccess;
  Stream* stream = stream_of(handle);
  const bool from_known = allocation_of(from), to_known = allocation_of(to);
  Node node{Kind::kCopy};
  node.to = to;
  node.from = from;
  node.bytes = bytes;
  if (stream->capture) {
    if (!from_known || !to_known) {
      return invalidate(stream, cudaErrorStreamCaptureUnsupported, "a copy of pageable memory in a capture");
    }
  } else if (!to_known) {  // a copy to pageable memory is done when the call returns
    flush(stream);
    memmove(to, from, bytes);
    return cudaSuccess;
  } else if (!from_known) {  // pageable memory was read when the call returns
    void* staged = malloc(bytes);
    memcpy(staged, from, bytes);
    node.from = staged;
    node.owned = true;
  }
  enqueue(stream, node);
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t handle) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t handle) {
  Lock lock;
  Stream* stream = stream_of(handle);
  Node node{Kind::kCopyRows};
  node.to = to;
  node.from = from;
  node.to_pitch = to_pitch;
  node.from_pitch = from_pitch;
  node.width = width;
  node.height = height;
  if (!stream->capture && (!allocation_of(from) || !allocation_of(to))) {
    flush(stream);
    run(node);
  } else {
    enqueue(stream, node);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  Lock lock;
  if (forbidden("cudaMemcpy")) return fail(cudaErrorStreamCaptureImplicit, "memcpy");
  flush_all();
  memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  Lock lock;
  flush_all();
  memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t handle) {
  Lock lock;
  Node node{Kind::kFill};
  node.to = to;
  node.value = value;
  node.bytes = bytes;
  enqueue(stream_of(handle), node);
  return cudaSuccess;
}

// ---- variables of device code

void __cudaRegisterVar(void**, char* variable, char*, const char*, int, size_t bytes, int, int) {
  variable_bytes[variable] = bytes;
}

cudaError_t cudaGetSymbolAddress(void** out, const void* variable) {
  Lock lock;
  void*& memory = variables[variable];
  if (!memory) {
    const auto known = variable_bytes.find(variable);
    memory = calloc(1, known == variable_bytes.end() ? kPage : known->second + 64);
  }
  *out = memory;
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void* variable, const void* from, size_t bytes, size_t offset, cudaMemcpyKind) {
  void* memory;
  cudaGetSymbolAddress(&memory, variable);
  memcpy(static_cast<char*>(memory) + offset, from, bytes);
  return cudaSuccess;
}

// ---- not supported: stream-ordered allocation and memory of other processes

cudaError_t cudaMallocAsync(void**, size_t, cudaStream_t) { return fail(cudaErrorNotSupported, "malloc async"); }
cudaError_t cudaFreeAsync(void*, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) { return cudaErrorNotSupported; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaErrorNotSupported; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaErrorNotSupported; }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaErrorNotSupported; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaErrorNotSupported; }
cudaError_t cudaIpcCloseMemHandle(void*) { return cudaErrorNotSupported; }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) { return cudaErrorNotSupported; }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return cudaErrorNotSupported; }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) { return cudaErrorNotSupported; }
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return cudaErrorNotSupported; }

}  // extern "C"
