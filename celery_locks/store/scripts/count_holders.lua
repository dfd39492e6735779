-- count_holders: count the holders and waiters of some locks, for each task.
-- KEYS after those below: h:<name>, q:<name> of each lock
-- returns {locks that are paused, [task, running holders, those of them not renewed for half their ttl, longest hold in ms,
--         queued messages, waiters, parked messages, longest wait of one in ms]...}; task '' is no task

--keys records
--include clock
--include overrides
--include count_parked

-- A parked message counts as alive for this long after it was parked; PARKED_MS in park.lua is the same.
local PARKED_MS = 315360000000

local counts, tasks = {}, {}

-- The counts of the task in a record.
local function counts_of(record)
  local length, rest = record:match('^%S+ %S+ %S+ %S+ %S+ %S+ %S+ (%d+) (.*)$')
  local decoded, about = pcall(cjson.decode, length and rest:sub(length + 1) or '{}')
  local task = decoded and type(about) == 'table' and about.task
  if type(task) ~= 'string' then task = '' end
  if not counts[task] then
    counts[task] = {held = 0, stale = 0, oldest = 0, queued = 0, waiting = 0, parked = 0, oldest_parked = 0}
    tasks[#tasks + 1] = task
  end
  return counts[task]
end

local function count_holder(token, expiry)
  local record = redis.call('HGET', records, token) or ''
  local since, ttl, attempt = record:match('^%d+ (%d+) (%d+) %d+ %S+ (%d+) ')
  if not since or token:sub(1, 1) == '-' then return end -- the slot is only kept (at_least)
  local count = counts_of(record)
  if token:sub(1, 1) == 'q' or tonumber(attempt) % 1000000 == 0 then
    count.queued = count.queued + 1
    return
  end
  count.held = count.held + 1
  count.oldest = math.max(count.oldest, now() - since)
  local renewed = math.max(expiry - ttl, tonumber(since))
  if now() - renewed > ttl / 2 then count.stale = count.stale + 1 end
end

local function count_pause(markers)
  for _, marker in ipairs(markers) do
    if not marker:find('^~limit') then return 1 end
  end
  return 0
end

-- Checks the first 100, as describe.lua does: a dead waiter stays in the queue until its turn.
-- The others are counted for the task of the last one of their kind that was checked.
local function count_waiters(queue)
  local waiters = redis.call('ZRANGE', queue, 0, ENDS - 1)
  local last = {}
  for _, token in ipairs(waiters) do
    local kind = is_parked(token) and 'parked' or 'waiting'
    local record = redis.call('HGET', records, token) or ''
    local alive_until = record:match('^0 (%d+) ')
    if alive_until and tonumber(alive_until) > now() then
      last[kind] = counts_of(record)
      last[kind][kind] = last[kind][kind] + 1
      if kind == 'parked' then
        -- Not by the ticket: see holder_of in replies.py.
        local since = alive_until - PARKED_MS
        last.parked.oldest_parked = math.max(last.parked.oldest_parked, now() - since)
      end
    end
  end
  if #waiters < ENDS then return end
  local rest = {parked = count_parked_behind(queue)}
  rest.waiting = redis.call('ZCARD', queue) - ENDS - rest.parked
  for kind, count in pairs(rest) do
    if count > 0 then
      last[kind] = last[kind] or counts_of('')
      last[kind][kind] = last[kind][kind] + count
    end
  end
end

local paused = 0
for i = 2, #KEYS, 2 do
  local holders = redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES')
  paused = paused + count_pause(live_markers(split_markers(holders)))
  for j = 1, #holders, 2 do
    local expiry = tonumber(holders[j + 1])
    if expiry > now() then count_holder(holders[j], expiry) end
  end
  count_waiters(KEYS[i + 1])
end

local reply = {paused}
for _, task in ipairs(tasks) do
  local count = counts[task]
  local values = {task, count.held, count.stale, count.oldest, count.queued, count.waiting}
  for _, value in ipairs(values) do reply[#reply + 1] = value end
  reply[#reply + 1] = count.parked
  reply[#reply + 1] = count.oldest_parked
end
return reply
