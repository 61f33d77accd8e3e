// fastreader::scan_chains on the CPU: recurrences of linear attention over the chains of a packed tree, level by level.
// A task is one chain and one head; if these are few, the columns of the state are divided too. Results depend on neither.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "parallel.h"

namespace fastreader {
namespace {

constexpr int64_t kMostSize = 1 << 12; // of keys and values: numbers of bytes do not overflow
constexpr int64_t kTasksPerThread = 2;

// Return a tensor as rows [token, head] of floats, each contiguous.
Source rows_of(const at::Tensor& tensor, int64_t tokens, int64_t heads, int64_t size, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.dim() == 3 && tensor.size(0) == tokens &&
                  tensor.size(1) == heads && tensor.size(2) == size,
              "scan_chains: ", name, " must be float32 [", tokens, ", ", heads, ", ", size, "], got ",
              tensor.scalar_type(), " ", tensor.sizes());
  return source_of(tensor, 1);
}

// The chains by level, as `fastreader.ops.recurrent.chains` describes them.
struct Walks {
  struct Chain {
    int32_t start, length, before, after, kept;
  };
  struct Level {
    int64_t first, chains, states;
  };
  const Chain* chains;
  std::vector<Level> levels;

  Walks(const at::Tensor& table, at::IntArrayRef levels_in, int64_t tokens, int64_t initial, int64_t rows) {
    TORCH_CHECK(table.scalar_type() == at::kInt && table.dim() == 2 && table.size(1) == 5 && table.is_contiguous() &&
                    levels_in.size() % 3 == 0,
                "scan_chains: expected chains int32 [N, 5] and three numbers a level, got ", table.scalar_type(), " ",
                table.sizes(), " and ", levels_in.size());
    const int64_t count = table.size(0);
    chains = reinterpret_cast<const Chain*>(table.const_data_ptr<int32_t>());
    std::vector<bool> covered(tokens);
    int64_t next = 0, earlier = initial, left = tokens;
    for (size_t i = 0; i < levels_in.size(); i += 3) {
      const Level level{levels_in[i], levels_in[i + 1], levels_in[i + 2]};
      TORCH_CHECK(level.first == next && 0 <= level.chains && level.chains <= count - next && 0 <= level.states &&
                      level.states <= level.chains,
                  "scan_chains: a level has chains from ", level.first, " on, ", level.chains, " of ", count, ", and ",
                  level.states, " states");
      next += level.chains;
      for (int64_t c = level.first; c < next; ++c) {
        const Chain& chain = chains[c];
        TORCH_CHECK(0 <= chain.start && 0 < chain.length && chain.length <= left && chain.start <= tokens - chain.length &&
                        -1 <= chain.before && chain.before < earlier && -1 <= chain.after &&
                        chain.after < level.states && -1 <= chain.kept && chain.kept < rows,
                    "scan_chains: chain ", c, " does not fit ", tokens, " tokens, ", earlier, " states before, ",
                    level.states, " after and ", rows, " kept ones");
        for (int64_t token = chain.start; token < chain.start + chain.length; ++token) {
          TORCH_CHECK(!covered[token], "scan_chains: token ", token, " is in two chains");
          covered[token] = true;
        }
        left -= chain.length;
      }
      earlier = level.states;
      levels.push_back(level);
    }
    TORCH_CHECK(next == count && left == 0, "scan_chains: ", count - next, " chains are in no level, ", left,
                " tokens in no chain");
  }
};

// Return how many columns of a state one task takes, so that there are tasks for all threads.
int64_t columns_of(int64_t tasks, int64_t value_size) {
  const int64_t wanted = kTasksPerThread * at::get_num_threads();
  const int64_t parts = std::max<int64_t>(1, std::min(wanted / std::max<int64_t>(tasks, 1), value_size / kStrip));
  return round_up((value_size + parts - 1) / parts, kStrip);
}

std::tuple<at::Tensor, at::Tensor> scan_chains(
    const at::Tensor& query_in, const at::Tensor& key_in, const at::Tensor& value_in, const at::Tensor& gate_in,
    const std::optional<at::Tensor>& beta, const std::optional<at::Tensor>& initial_in, const at::Tensor& chains,
    at::IntArrayRef levels, int64_t rows, double scale, std::optional<double> epsilon, c10::string_view isa) {
  TORCH_CHECK(query_in.dim() == 3 && value_in.dim() == 3 && gate_in.dim() >= 2,
              "scan_chains: expected query [T, Hk, D], value [T, Hv, Dv] and gate [T, Hv] or [T, Hv, D], got ",
              query_in.sizes(), ", ", value_in.sizes(), " and ", gate_in.sizes());
  const int64_t tokens = query_in.size(0), key_heads = query_in.size(1), size = query_in.size(2);
  const int64_t heads = value_in.size(1), value_size = value_in.size(2);
  TORCH_CHECK(0 < size && size <= kMostSize && 0 < value_size && value_size <= kMostSize && 0 < key_heads &&
                  0 < heads && heads % key_heads == 0 && rows >= 0,
              "scan_chains: expected sizes up to ", kMostSize, " and key heads that divide ", heads, ", got ", size, ", ",
              value_size, " and ", key_heads);
  const at::Tensor query = with_contiguous_rows(query_in), key = with_contiguous_rows(key_in);
  const at::Tensor value = with_contiguous_rows(value_in);
  const bool channels = gate_in.dim() == 3;
  const at::Tensor gate = channels ? with_contiguous_rows(gate_in) : gate_in.unsqueeze(2);
  ScanArgs a{};
  a.query = rows_of(query, tokens, key_heads, size, "query");
  a.key = rows_of(key, tokens, key_heads, size, "key");
  a.value = rows_of(value, tokens, heads, value_size, "value");
  a.gate = rows_of(gate, tokens, heads, channels ? size : 1, "gate");
  if (beta.has_value()) {
    TORCH_CHECK(beta->dim() == 2, "scan_chains: beta must be [T, Hv], got ", beta->sizes());
    a.beta = rows_of(beta->unsqueeze(2), tokens, heads, 1, "beta");
  }
  a.groups = heads / key_heads;
  a.size = size;
  a.value_size = value_size;
  a.heads = heads;
  a.channels = channels;
  a.scale = static_cast<float>(scale);
  a.unit = epsilon.has_value();
  a.epsilon = static_cast<float>(epsilon.value_or(0));
  at::Tensor earlier;
  if (initial_in.has_value()) {
    TORCH_CHECK(initial_in->scalar_type() == at::kFloat && initial_in->dim() == 4 && initial_in->size(1) == heads &&
                    initial_in->size(2) == size && initial_in->size(3) == value_size,
                "scan_chains: initial must be float32 [S, ", heads, ", ", size, ", ", value_size, "], got ",
                initial_in->scalar_type(), " ", initial_in->sizes());
    earlier = initial_in->contiguous();
  }
  const Walks walks(chains, levels, tokens, earlier.defined() ? earlier.size(0) : 0, rows);
  const at::Tensor out = at::empty({tokens, heads, value_size}, value.options());
  const at::Tensor kept = at::empty({rows, heads, size, value_size}, value.options()); // rows of no chain stay unset
  a.out = out.mutable_data_ptr<float>();
  const Kernels& kernels = kernels_for(resolve_isa(std::string(isa)), Mode::f32);
  const int64_t state = size * value_size;
  for (const Walks::Level& level : walks.levels) {
    const at::Tensor later = at::empty({level.states, heads, size, value_size}, value.options());
    const int64_t pairs = level.chains * heads, columns = columns_of(pairs, value_size);
    const int64_t parts = (value_size + columns - 1) / columns;
    const float* const from = earlier.defined() ? earlier.const_data_ptr<float>() : nullptr;
    float *const to = later.mutable_data_ptr<float>(), *const keep = kept.mutable_data_ptr<float>();
    run_tasks(kernels, pairs * parts, kernels.scan_workspace(a, columns), [&](int64_t task, void* workspace) {
      const Walks::Chain& chain = walks.chains[level.first + task / (heads * parts)];
      const int64_t head = task / parts % heads, column = task % parts * columns;
      const auto at = [&](int64_t row) { return (row * heads + head) * state; };
      ScanTask t{chain.start, chain.length, head, column, std::min(columns, value_size - column)};
      if (chain.before >= 0) t.before = from + at(chain.before);
      if (chain.after >= 0) t.after = to + at(chain.after);
      if (chain.kept >= 0) t.kept = keep + at(chain.kept);
      kernels.scan(a, t, workspace);
    });
    earlier = later;
  }
  return {out, kept};
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) { m.impl("scan_chains", &scan_chains); }

} // namespace fastreader
