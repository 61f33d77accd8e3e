// Attend with one tile of queries over the key blocks of its schedule (see the files state, softmax, units, results).

template <typename T, int TERMS>
void attend(const AttentionArgs& a, int64_t tile, int64_t head, int64_t part, void* workspace) {
  Tile<T, TERMS> t{};
  Tile<T, TERMS>::layout(a, static_cast<char*>(workspace), &t);
  const int64_t first = a.tile_start[tile], count = a.tile_stop[tile] - first, columns = a.padded_value_size;
  const int64_t strips = (count * a.groups + kStrip - 1) / kStrip;
  load_queries<T, TERMS>(a, t, first, count, head);
  if (part < 0) fetch_queries(a, tile + a.threads, head);
  for (int64_t i = 0; i < strips * kStrip; ++i) {
    t.maximum[i] = kMinusInfinity;
    t.segment[i] = -1;
  }
  std::memset(t.total, 0, strips * kTotals * sizeof(float));
  std::memset(t.outer_total, 0, strips * kTotals * sizeof(float));
  bool outer_started[kMaxStrips] = {};
  Units units{a, a.block_ptr[tile], a.block_ptr[tile + 1], strips, part};
  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t lanes = lesser(kStrip, count * a.groups - strip * kStrip);
    units.lowest[strip] = minimum_of(t.query_node + strip * kStrip, lanes);
    units.highest[strip] = maximum_of(t.query_node + strip * kStrip, lanes);
  }

  // While the vector units exponentiate a unit's scores, the tile units sum the values of the previous unit and compute
  // the scores of the next. They also fall asleep after some 250 ns without a product and take 300 ns to wake.
  const float factor = scales_first(a) ? kLog2E : a.scale * kLog2E;
  Queue<T, TERMS, TERMS> queue;
  Unit before{}, unit{}, after{};
  bool more = units.next(unit);
  if (more) queue.push(scores_of(a, t, unit, head, t.scores));
  queue.finish();
  for (int64_t turn = 0; more; ++turn, before = unit, unit = after) {
    float* scores = t.scores + turn % 2 * a.key_block * kStrip;
    vf best[kVectors];
    complete_scores(a, t, units, unit, scores);
    greatest_scores(scores, unit.rows(), best);
    if (turn > 0) queue.push(sums_of(a, t, before, head, t.weights_of(a, turn + 1)));
    if (before.strip == unit.strip) queue.finish(); // its sums may be scaled next
    enter_segment(a, t, unit, best, outer_started);
    const int64_t rows = unit.strip * kStrip;
    raise_maximum(best, factor, t.maximum + rows, t.total + 2 * rows, t.outer_total + 2 * rows,
                  unit.first ? nullptr : t.sums + rows * columns,
                  outer_started[unit.strip] ? t.outer_sums + rows * columns : nullptr, columns);
    more = units.next(after);
    // After the sums in the queue, whose weights these scores overwrite.
    if (more) queue.push(scores_of(a, t, after, head, t.scores + (turn + 1) % 2 * a.key_block * kStrip));
    exponentiate_unit(a, t, unit, factor, scores, t.weights_of(a, turn), queue);
    queue.finish();
    if (!more) queue.push(sums_of(a, t, unit, head, t.weights_of(a, turn)));
  }
  if (part < 0) fetch_results(a, tile, head);
  queue.finish();
  for (int64_t strip = 0; strip < strips; ++strip) {
    if (part < 0) {
      write_strip<T, TERMS>(a, t, strip, first, count, head, !units.started[strip], outer_started[strip]);
      continue;
    }
    const Part out(a, tile, head, part, strip);
    std::memcpy(out.maximum, t.maximum + strip * kStrip, kStrip * sizeof(float));
    std::memcpy(out.total, t.total + strip * kTotals, kTotals * sizeof(float));
    if (units.started[strip]) std::memcpy(out.sums, t.sums + strip * columns * kStrip, columns * kStrip * sizeof(float));
  }
}

template <typename T, int TERMS>
int64_t attend_workspace(const AttentionArgs& a) {
  return Tile<T, TERMS>::layout(a, nullptr, nullptr);
}
