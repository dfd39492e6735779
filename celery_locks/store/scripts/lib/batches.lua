-- Shared by the scripts of buffers. Each user of a buffer has a lock, <name>, and beside it
--   l:<name>    list  the messages that wait, oldest first
--   f:<name>    list  the batch in flight: the token of its holder, then the messages
--   u:<buffer>  zset  user -> number of messages, waiting and in flight
-- Only the holder of the lock may have the batch. When its token no longer holds the lock, the batch
-- is put back.

local function count_messages(buffer, user, name)
  local in_flight = redis.call('LLEN', root .. 'f:' .. name)
  local count = redis.call('LLEN', root .. 'l:' .. name) + math.max(0, in_flight - 1)
  if count > 0 then redis.call('ZADD', root .. 'u:' .. buffer, count, user)
  else redis.call('ZREM', root .. 'u:' .. buffer, user) end
  return count
end

-- Put the batch back in order, before the messages that arrived later.
local function put_back(name)
  local in_flight, waiting = root .. 'f:' .. name, root .. 'l:' .. name
  local count = redis.call('LLEN', in_flight) - 1
  for _ = 1, count do redis.call('LMOVE', in_flight, waiting, 'RIGHT', 'LEFT') end
  redis.call('DEL', in_flight)
  return count
end

local function is_held(name, token)
  local expiry = redis.call('ZSCORE', root .. 'h:' .. name, token)
  return expiry and tonumber(expiry) > now()
end
