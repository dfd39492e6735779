-- waits: the locks of this shard that some owners wait for, and their holders. Read-only.
-- ARGV owners (owners.py)
-- returns {owner, name, token, ticket, number of holders, [token, expiry, record]...} for each owner
--         that waits here, with 64 holders at most
--
-- Left out: an owner that does not wait any more, one whose process is gone (nobody listens on its
-- channel), and one that waits for a lock with a lapsed holder (it is about to get that slot).

--include common

-- The lock that this waiter waits for, or nil if the waiter is dead.
local function awaited_lock(token)
  local alive_until, channel, length, rest =
    (redis.call('HGET', records, token) or ''):match('^0 (%d+) %S+ %S+ %S+ %S+ (%S+) (%d+) (.*)$')
  if not alive_until or tonumber(alive_until) <= now() then return end
  -- pcall: without the permission for PUBSUB every waiter counts as alive.
  local listeners = channel ~= '-' and redis.pcall('PUBSUB', 'NUMSUB', channel)
  if type(listeners) == 'table' and listeners[2] == 0 then return end
  return rest:sub(1, tonumber(length))
end

local function describe_wait(owner)
  local token = redis.call('GET', root .. 'w:' .. owner)
  local name = token and awaited_lock(token)
  local ticket = name and redis.call('ZSCORE', root .. 'q:' .. name, token)
  if not ticket then return end
  local holders = redis.call('ZRANGE', root .. 'h:' .. name, 0, 63, 'WITHSCORES')
  if not holders[1] or tonumber(holders[2]) <= now() then return end
  local entry = {owner, name, token, ticket, redis.call('ZCARD', root .. 'h:' .. name)}
  for i = 1, #holders, 2 do
    entry[#entry + 1] = holders[i]
    entry[#entry + 1] = holders[i + 1]
    entry[#entry + 1] = redis.call('HGET', records, holders[i]) or ''
  end
  return entry
end

local reply = {}
for _, owner in ipairs(ARGV) do reply[#reply + 1] = describe_wait(owner) end
return reply
