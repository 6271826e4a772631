-- Views of a trace written by `python -m tracer export`, for PerfettoSQL (UI v52 and newer, trace_processor).
-- Paste this whole file into the query page, then for example:
--   select * from async_gap order by gap desc limit 20;
--   select place, sum(dur) / 1e6 as ms from stalls where costs_time group by 1 order by 2 desc;
--   select cause, sum(dur) / 1e6 as ms from idle_causes group by 1 order by 2 desc;
-- Times are nanoseconds.

-- One row for each piece of GPU work whose launch is in the trace: how long it waited in the queue.
-- A CUDA graph is one piece of work. `gap` runs from the end of the call to the start of the work.
drop view if exists async_gap;
create perfetto view async_gap as
select
  work.id as work_id,
  work.name as work,
  work.ts as work_ts,
  work.dur as work_dur,
  call.id as call_id,
  call.name as call,
  call.ts as call_ts,
  call.dur as call_dur,
  work.ts - call.ts - call.dur as gap,
  work.ts - call.ts as delay,
  extract_arg(work.arg_set_id, 'debug.launched_by') as launched_by,
  row.name as row
from flow
join slice as one on one.id = flow.slice_out
join slice as other on other.id = flow.slice_in
-- An arrow leaves the end that began first, which is the work where two clocks disagree.
join slice as call on call.id = iif(one.category = 'call', one.id, other.id)
join slice as work on work.id = iif(one.category = 'call', other.id, one.id)
join track as row on row.id = work.track_id
where call.category = 'call' and work.category in ('kernel', 'copy', 'graph');

-- One row for each time that the host was held: where, by what, and whether it cost time.
drop view if exists stalls;
create perfetto view stalls as
select
  slice.id as slice_id,
  slice.ts,
  slice.dur,
  slice.name,
  extract_arg(slice.arg_set_id, 'debug.finding') as finding,
  extract_arg(slice.arg_set_id, 'debug.rule') as rule,
  extract_arg(slice.arg_set_id, 'debug.line') as place,
  extract_arg(slice.arg_set_id, 'debug.code') as code,
  extract_arg(slice.arg_set_id, 'debug.waited_for') as waited_for,
  extract_arg(slice.arg_set_id, 'debug.costs_time') = 'yes' as costs_time,
  extract_arg(slice.arg_set_id, 'debug.gain') as gain,
  extract_arg(slice.arg_set_id, 'debug.fix') as fix
from slice
where slice.category = 'stall';

-- One row for each stretch in which a GPU had nothing to do, and why.
drop view if exists idle_causes;
create perfetto view idle_causes as
select
  slice.id as slice_id,
  slice.ts,
  slice.dur,
  slice.name,
  extract_arg(slice.arg_set_id, 'debug.cause') as cause,
  extract_arg(slice.arg_set_id, 'debug.finding') as finding,
  extract_arg(slice.arg_set_id, 'debug.fix') as fix,
  gpu.name as gpu
from slice
join track as row on row.id = slice.track_id
left join track as gpu on gpu.id = row.parent_id
where slice.category = 'idle';
