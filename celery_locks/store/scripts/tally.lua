-- tally: a page of the locks, walking the index as list does, only counted, for each task.
-- ARGV 1 cursor, '0' to begin  2 about how many
-- returns {next cursor ('0' at the end), [task, holders at work, of these not renewed for half
--          their ttl, longest hold in ms, messages in the queue, waiters]...}; task '' is no task

--include common

local page = redis.call('ZSCAN', index, ARGV[1], 'COUNT', ARGV[2])
local counts, tasks = {}, {}

-- The counts of the task that a record names.
local function of(record)
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
  if not since or token:sub(1, 1) == '-' then return end -- its work has ended
  local count = of(record)
  if token:sub(1, 1) == 'q' or tonumber(attempt) % 1000000 == 0 then
    count.queued = count.queued + 1
    return
  end
  count.held = count.held + 1
  count.oldest = math.max(count.oldest, now() - since)
  local renewed = math.max(expiry - ttl, tonumber(since))
  if now() - renewed > ttl / 2 then count.stale = count.stale + 1 end
end

-- Like describe.lua, which looks at the first hundred: one that died in line stays until its turn.
-- Those beyond are counted for the task of the last that was looked at.
local function count_waiters(queue)
  local line, count = redis.call('ZRANGE', queue, 0, 99), nil
  for _, token in ipairs(line) do
    local record = redis.call('HGET', records, token) or ''
    local alive = record:match('^0 (%d+) ')
    if alive and tonumber(alive) > now() then
      count = of(record)
      count.waiting = count.waiting + 1
    end
  end
  if #line == 100 then
    count = count or of('')
    count.waiting = count.waiting + redis.call('ZCARD', queue) - 100
  end
end

for i = 1, #page[2], 2 do
  local name = page[2][i]
  if tonumber(page[2][i + 1]) > now() then
    local holders = redis.call('ZRANGEBYSCORE', root .. 'h:' .. name, '(' .. now(), '+inf', 'WITHSCORES')
    for j = 1, #holders, 2 do count_holder(holders[j], tonumber(holders[j + 1])) end
    count_waiters(root .. 'q:' .. name)
  end
end

local reply = {page[1]}
for _, task in ipairs(tasks) do
  local count = counts[task]
  for _, value in ipairs({task, count.held, count.stale, count.oldest, count.queued, count.waiting}) do
    reply[#reply + 1] = value
  end
end
return reply
