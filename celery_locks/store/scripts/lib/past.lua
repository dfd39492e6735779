-- The history of holds, and the durations of each task's last holds.

-- Why a hold ended that nobody released.
local LAPSED = 'it was not renewed'
-- At most this many entries a call: nobody reads more.
local MAX_NOTED = 16
local noted = 0

-- Keep the durations apart from the stream, so that frequent tasks do not push out rare ones.
local function note_duration(record, held_for)
  local length, rest = record:match('^%S+ %S+ %S+ %S+ %S+ %S+ %S+ (%d+) (.*)$')
  local about = cjson.decode(rest:sub(length + 1))
  local task = about.task
  if not task or about.task_id then return end -- only a task's own lock, not what its code acquired
  local before = redis.call('HGET', usual, task)
  if not before and redis.call('HLEN', usual) >= 1000 then
    redis.call('HDEL', usual, unpack(redis.call('HRANDFIELD', usual, 1)))
  end
  local holds = held_for .. ' ' .. (before or '')
  redis.call('HSET', usual, task, holds:match('^' .. string.rep('%d+ ', 16)) or holds)
end

-- Note that a hold ended at `ended_at` ms: kind 'held' or 'lapsed'; `key` is a key of the lock; `why` is
-- '' for its own release.
-- Call it before the record is deleted. It never fails: a release matters more.
-- Not noted: a slot under which nobody works (the rest of at_least '-', a reservation 'q' or 'k'), a
-- marker '~', and a hold no longer than the claim window.
local function note_past(kind, key, token, ended_at, why)
  if noted >= MAX_NOTED or token:find('^[-qk~]') then return end
  local record = redis.call('HGET', records, token) or ''
  local held_for = ended_at - (record:match('^[1-9]%d* (%d+) ') or ended_at)
  if held_for <= CLAIM_MS then return end
  noted = noted + 1
  held_for = string.format('%.0f', held_for)
  redis.pcall('XADD', past, 'MAXLEN', '~', 1000, '*', 'act', kind, 'name', name_of(key), 'why', why,
    'held', held_for, 'from', token, 'from', string.format('%.0f', ended_at), 'from', record)
  if why == '' then pcall(note_duration, record, held_for) end
end
