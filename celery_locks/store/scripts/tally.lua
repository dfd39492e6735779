-- tally: a page of the locks, walking the index as list does, only counted.
-- ARGV 1 cursor, '0' to begin  2 about how many
-- returns {next cursor ('0' at the end), holders at work, of these not renewed for half their ttl,
--          longest hold in ms, messages in the queue, waiters}

--include common

local page = redis.call('ZSCAN', index, ARGV[1], 'COUNT', ARGV[2])
local held, stale, oldest, queued, waiting = 0, 0, 0, 0, 0

local function count_holder(token, expiry)
  local record = redis.call('HGET', records, token) or ''
  local since, ttl, attempt = record:match('^%d+ (%d+) (%d+) %d+ %S+ (%d+) ')
  if not since or token:sub(1, 1) == '-' then return end -- its work has ended
  if token:sub(1, 1) == 'q' or tonumber(attempt) % 1000000 == 0 then
    queued = queued + 1
    return
  end
  held = held + 1
  oldest = math.max(oldest, now() - since)
  local renewed = math.max(expiry - ttl, tonumber(since))
  if now() - renewed > ttl / 2 then stale = stale + 1 end
end

-- Like describe.lua, which looks at the first hundred: one that died in line stays until its turn.
local function count_waiters(queue)
  local line = redis.call('ZRANGE', queue, 0, 99)
  for _, token in ipairs(line) do
    local alive = (redis.call('HGET', records, token) or ''):match('^0 (%d+) ')
    if alive and tonumber(alive) > now() then waiting = waiting + 1 end
  end
  if #line == 100 then waiting = waiting + redis.call('ZCARD', queue) - 100 end
end

for i = 1, #page[2], 2 do
  local name = page[2][i]
  if tonumber(page[2][i + 1]) > now() then
    local holders = redis.call('ZRANGEBYSCORE', root .. 'h:' .. name, '(' .. now(), '+inf', 'WITHSCORES')
    for j = 1, #holders, 2 do count_holder(holders[j], tonumber(holders[j + 1])) end
    count_waiters(root .. 'q:' .. name)
  end
end
return {page[1], held, stale, oldest, queued, waiting}
