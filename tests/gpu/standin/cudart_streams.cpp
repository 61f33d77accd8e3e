// Streams, events, captures with what they forbid, and graphs.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cudart.h"

namespace standin {
namespace {

Event* event_of(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }

Graph* graph_of(void* handle) { return reinterpret_cast<Graph*>(handle); }

cudaError_t new_stream(cudaStream_t* out, int priority) {
  Lock lock;
  auto* stream = new Stream;
  stream->device = current_device;
  stream->priority = priority;
  streams.insert(stream);
  *out = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}

// Whether an event was recorded in a capture that has not ended.
bool is_captured(const Event* event) {
  return event->capture && std::find(captures.begin(), captures.end(), event->capture) != captures.end();
}

cudaStreamCaptureStatus status_of(const Capture* capture) {
  if (!capture) return cudaStreamCaptureStatusNone;
  return capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

// ---- streams

cudaError_t cudaStreamCreate(cudaStream_t* out) { return new_stream(out, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) { return new_stream(out, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned, int priority) {
  return new_stream(out, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Lock lock;
  flush(reinterpret_cast<Stream*>(handle));
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* out) {
  *out = stream_of(handle)->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Lock lock;
  Stream* stream = stream_of(handle);
  if (stream->capture) {
    return invalidate(stream, cudaErrorStreamCaptureUnsupported, "synchronise a capturing stream");
  }
  flush(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Lock lock;
  Stream* stream = stream_of(handle);
  if (stream->capture) return invalidate(stream, cudaErrorStreamCaptureUnsupported, "query a capturing stream");
  return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  Lock lock;
  Node node{Kind::kHost};
  node.function = function;
  node.to = argument;
  enqueue(stream_of(handle), node);
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t, cudaStreamCallback_t, void*, unsigned) {
  return cudaErrorNotSupported;
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  Lock lock;
  Event* event = event_of(handle);
  Stream* stream = stream_of(stream_handle);
  event->capture = stream->capture;
  if (stream->capture) return cudaSuccess;
  event->stream = stream;
  Node node{Kind::kRecord};
  node.event = event;
  node.version = ++event->recorded;
  enqueue(stream, node);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Lock lock;
  Event* event = event_of(handle);
  if (forbidden("cudaEventQuery")) return fail(cudaErrorStreamCaptureUnsupported, "query an event");
  if (is_captured(event)) return fail(kErrorCapturedEvent, "query a captured event");
  if (event->done >= event->recorded) return cudaSuccess;
  last_error = cudaErrorNotReady;
  return last_error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Lock lock;
  Event* event = event_of(handle);
  if (is_captured(event)) return fail(kErrorCapturedEvent, "wait for a captured event");
  if (event->stream) flush(event->stream, event, event->recorded);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned) {
  Lock lock;
  Event* event = event_of(handle);
  Stream* stream = stream_of(stream_handle);
  if (is_captured(event)) {  // the stream joins the capture
    stream->capture = event->capture;
    return cudaSuccess;
  }
  if (stream->capture) {
    if (event->done >= event->recorded) return cudaSuccess;
    return invalidate(stream, kErrorCapturedWork, "wait in a capture for work outside of it");
  }
  Node node{Kind::kWait};
  node.event = event;
  node.version = event->recorded;
  enqueue(stream, node);
  return cudaSuccess;
}

// ---- captures

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Lock lock;
  static unsigned long long next_id = 1;
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    return fail(cudaErrorStreamCaptureUnsupported, "capture the legacy stream");
  }
  Stream* stream = stream_of(handle);
  if (stream->capture) return fail(cudaErrorIllegalState, "capture a capturing stream");
  auto* capture = new Capture{next_id++, new Graph, mode, std::this_thread::get_id(), stream->device};
  captures.push_back(capture);
  stream->capture = capture;
  STANDIN_LOG("capture %llu begins, device %d, mode %d\n", capture->id, stream->device, static_cast<int>(mode));
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* out) {
  Lock lock;
  Capture* capture = stream_of(handle)->capture;
  if (!capture) return fail(cudaErrorIllegalState, "end of no capture");
  captures.erase(std::find(captures.begin(), captures.end(), capture));
  for (Stream* stream : streams) {
    if (stream->capture == capture) stream->capture = nullptr;
  }
  STANDIN_LOG("capture %llu ends with %zu nodes%s\n", capture->id, capture->graph->nodes.size(),
              capture->invalid ? ", invalid" : "");
  *out = capture->invalid ? nullptr : reinterpret_cast<cudaGraph_t>(capture->graph);
  return capture->invalid ? fail(cudaErrorStreamCaptureInvalidated, "end capture") : cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* out) {
  Lock lock;
  *out = status_of(stream_of(handle)->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  Lock lock;
  const Capture* capture = stream_of(handle)->capture;
  if (status) *status = status_of(capture);
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = capture ? reinterpret_cast<cudaGraph_t>(capture->graph) : nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const cudaGraphNode_t*,
                                          const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode) {
  return cudaErrorNotSupported;
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                unsigned) {
  return cudaSuccess;
}

// ---- graphs

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph_of(graph)->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* count) {
  *count = 0;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  *out = reinterpret_cast<cudaGraphExec_t>(new Graph(*graph_of(graph)));
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle) {
  Lock lock;
  Stream* stream = stream_of(handle);
  const std::vector<Node>& nodes = graph_of(graph)->nodes;
  for (const Node& node : nodes) {
    if (stream->capture) {
      stream->capture->graph->nodes.push_back(node);
    } else {
      stream->queue.push_back(node);
    }
  }
  if (runs_at_once() && !stream->capture) flush(stream);
  STANDIN_LOG("graph of %zu nodes launched\n", nodes.size());
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }

cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                             cudaGraphNodeParams*) {
  return cudaErrorNotSupported;
}

cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle*, cudaGraph_t, unsigned, unsigned) {
  return cudaErrorNotSupported;
}

}  // extern "C"
