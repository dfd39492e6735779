-- tally: count the holders and waiters of some locks, for each task.
-- KEYS after those below: h:<name>, q:<name> of each lock
-- returns [task, running holders, those of them not renewed for half their ttl, longest hold in ms,
--         queued messages, waiters]...; task '' is no task

--keys records
--include clock

local counts, tasks = {}, {}

-- The counts of the task in a record.
local function counts_of(record)
  local length, rest = record:match('^%S+ %S+ %S+ %S+ %S+ %S+ %S+ (%d+) (.*)$')
  local decoded, about = pcall(cjson.decode, length and rest:sub(length + 1) or '{}')
  local task = decoded and type(about) == 'table' and about.task
  if type(task) ~= 'string' then task = '' end
  if not counts[task] then
    counts[task] = {held = 0, stale = 0, oldest = 0, queued = 0, waiting = 0}
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

-- Checks the first 100, as describe.lua does: a dead waiter stays in the queue until its turn.
-- The others are counted for the task of the last one that was checked.
local function count_waiters(queue)
  local waiters, count = redis.call('ZRANGE', queue, 0, 99), nil
  for _, token in ipairs(waiters) do
    local record = redis.call('HGET', records, token) or ''
    local alive_until = record:match('^0 (%d+) ')
    if alive_until and tonumber(alive_until) > now() then
      count = counts_of(record)
      count.waiting = count.waiting + 1
    end
  end
  if #waiters == 100 then
    count = count or counts_of('')
    count.waiting = count.waiting + redis.call('ZCARD', queue) - 100
  end
end

for i = 2, #KEYS, 2 do
  local holders = redis.call('ZRANGEBYSCORE', KEYS[i], '(' .. now(), '+inf', 'WITHSCORES')
  for j = 1, #holders, 2 do count_holder(holders[j], tonumber(holders[j + 1])) end
  count_waiters(KEYS[i + 1])
end

local reply = {}
for _, task in ipairs(tasks) do
  local count = counts[task]
  for _, value in ipairs({task, count.held, count.stale, count.oldest, count.queued, count.waiting}) do
    reply[#reply + 1] = value
  end
end
return reply
