-- Shared by the verbs of buffers. A buffer's user has a lock, <name>, and beside it
--   l:<name>    list  the messages that wait, oldest first
--   f:<name>    list  the batch in flight: the token of who has it, then the messages
--   u:<buffer>  zset  user -> how many messages, both of them: whose there are, longest first
-- Whoever holds the lock may have the batch. Once its token holds no more, the batch goes back.

local function count_messages(buffer, user, name)
  local flying = redis.call('LLEN', root .. 'f:' .. name)
  local count = redis.call('LLEN', root .. 'l:' .. name) + math.max(0, flying - 1)
  if count > 0 then redis.call('ZADD', root .. 'u:' .. buffer, count, user)
  else redis.call('ZREM', root .. 'u:' .. buffer, user) end
  return count
end

-- In order, in front of what came since.
local function put_back(name)
  local flying, waiting = root .. 'f:' .. name, root .. 'l:' .. name
  local count = redis.call('LLEN', flying) - 1
  for _ = 1, count do redis.call('LMOVE', flying, waiting, 'RIGHT', 'LEFT') end
  redis.call('DEL', flying)
  return count
end

local function is_held(name, token)
  local expiry = redis.call('ZSCORE', root .. 'h:' .. name, token)
  return expiry and tonumber(expiry) > now()
end
