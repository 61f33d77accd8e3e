// fastreader::tree_slots: the slots in which the CPU kernels keep the keys of a tree.
//
// Slots come in chunks of 32. The keys of one path with one depth / 32 (a level) lie in one chunk at rising slots,
// those of depths 2i and 2i + 1 next to each other in an even and an odd slot. The kernels sum such a chunk in one way
// only, so that the sums of a path do not depend on where other paths branch off.
//
// If a key follows an earlier key of its level whose next slot is taken, it takes a later slot if its whole subtree
// fits in the chunk (short leaves of one parent then share their parent's last keys), with a copy of its parent before it if
// the two are a pair. Otherwise it takes a new chunk that starts with copies of the keys before it on its level. Later
// queries see the copies instead of the old keys: queries see a slot from the node of its birth to its end. No query
// sees two copies.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <limits>
#include <vector>

#include "kernels.h"

namespace fastreader {
namespace {

using Tensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

class Slots {
 public:
  explicit Slots(const int32_t* subtree_end, int64_t count) : subtree_end_(subtree_end), count_(count) {
    for (int64_t key = 0; key < count; ++key) {
      if (subtree_end[key] > key) add(static_cast<int32_t>(key)); // no query sees any other key
    }
  }

  Tensors tensors() const {
    const auto copy = [](const std::vector<int32_t>& values) {
      at::Tensor out = at::empty({static_cast<int64_t>(values.size())}, at::kInt);
      std::copy(values.begin(), values.end(), out.mutable_data_ptr<int32_t>());
      return out;
    };
    const int64_t chunks = static_cast<int64_t>(level_.size());
    at::Tensor bounds = at::empty({chunks, static_cast<int64_t>(sizeof(Chunk) / sizeof(int32_t))}, at::kInt);
    Chunk* out = reinterpret_cast<Chunk*>(bounds.mutable_data_ptr<int32_t>());
    for (int64_t c = 0; c < chunks; ++c) {
      out[c] = {level_[c], kNever, 0, kNever, 0};
      for (int64_t slot = c * kStrip; slot < (c + 1) * kStrip; ++slot) {
        out[c].first_birth = std::min(out[c].first_birth, birth_[slot]);
        out[c].last_birth = std::max(out[c].last_birth, birth_[slot]);
        out[c].first_end = std::min(out[c].first_end, end_[slot]);
        out[c].last_end = std::max(out[c].last_end, end_[slot]);
      }
    }
    return {copy(key_), copy(birth_), copy(end_), bounds};
  }

 private:
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

  struct Step { // of the path to the current key
    int32_t key;
    int64_t slot;
  };

  void add(int32_t key) {
    while (!path_.empty() && subtree_end_[path_.back().key] <= key) path_.pop_back();
    const int64_t stop = std::min<int64_t>(subtree_end_[key], count_);
    TORCH_CHECK_VALUE(path_.empty() || stop <= std::min<int64_t>(subtree_end_[path_.back().key], count_),
                      "tree_attention: subtree_end is not of a tree in depth-first order: key ", key, " ends at ",
                      subtree_end_[key], ", its ancestor ", path_.empty() ? 0 : path_.back().key, " at ",
                      path_.empty() ? 0 : subtree_end_[path_.back().key]);
    const int64_t depth = static_cast<int64_t>(path_.size()), level = depth / kStrip, first = level * kStrip;
    if (level == static_cast<int64_t>(current_.size())) current_.push_back(-1);
    int64_t chunk = current_[level];
    const bool begins = depth == first;
    // A level's chunk comes after that of the previous level, so that slots in order are a path in order.
    if (begins && level > 0 && chunk < current_[level - 1]) chunk = -1;
    int64_t slot = -1;
    if (chunk >= 0) {
      int64_t next = chunk * kStrip + fill_[chunk];
      const int64_t stop_slot = (chunk + 1) * kStrip;
      if (!begins && path_.back().slot == next - 1) {
        if (next < stop_slot) slot = next;
      } else {
        const int64_t odd = depth % 2;
        next += next % 2;
        if (next + odd + stop - key <= stop_slot) {
          slot = next + odd;
          if (odd == 1) move(path_.back(), next, key);
        }
      }
    }
    if (slot < 0) {
      chunk = open(level);
      for (int64_t at = first; at < depth; ++at) move(path_[at], chunk * kStrip + at - first, key);
      slot = chunk * kStrip + depth - first;
    }
    current_[level] = chunk;
    fill_[chunk] = slot % kStrip + 1;
    put(slot, key, key, subtree_end_[key]);
    path_.push_back({key, slot});
  }

  // From node `birth` on, queries see the step's key in another slot.
  void move(Step& step, int64_t slot, int32_t birth) {
    end_[step.slot] = std::min(end_[step.slot], birth);
    step.slot = slot;
    put(slot, step.key, birth, subtree_end_[step.key]);
  }

  int64_t open(int64_t level) {
    key_.resize(key_.size() + kStrip, -1);
    birth_.resize(birth_.size() + kStrip, kNever);
    end_.resize(end_.size() + kStrip, 0);
    level_.push_back(static_cast<int32_t>(level));
    fill_.push_back(0);
    return static_cast<int64_t>(level_.size()) - 1;
  }

  void put(int64_t slot, int32_t key, int32_t birth, int32_t end) {
    key_[slot] = key;
    birth_[slot] = birth;
    end_[slot] = end;
  }

  const int32_t* subtree_end_;
  int64_t count_;
  std::vector<int32_t> key_, birth_, end_; // [slots]
  std::vector<int32_t> level_; // [chunks]
  std::vector<int64_t> fill_; // [chunks], one past the last slot taken
  std::vector<int64_t> current_; // [levels], the latest chunk with the path's keys of a level
  std::vector<Step> path_;
};

Tensors tree_slots(const at::Tensor& subtree_end) {
  TORCH_CHECK(subtree_end.scalar_type() == at::kInt && subtree_end.dim() == 1 && subtree_end.is_contiguous(),
              "tree_slots: subtree_end must be contiguous int32 [Tk], got ", subtree_end.scalar_type(), " ",
              subtree_end.sizes());
  return Slots(subtree_end.const_data_ptr<int32_t>(), subtree_end.numel()).tensors();
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) { m.impl("tree_slots", &tree_slots); }

} // namespace fastreader
