-- For scripts that must not run twice when their reply is lost and the call is repeated: by then
-- another caller may have the lock, the claim or the item. The call carries a request id. For ten
-- seconds, longer than a call and its retries take, the same id gets the same reply.
--   p:<request id>  list  the reply, never empty; its numbers come back as strings

local function saved_reply(key)
  local reply = redis.call('LRANGE', key, 0, -1)
  return #reply > 0 and reply
end

local function save_reply(key, reply)
  redis.call('DEL', key) -- needs no memory: after a first write a script may continue under OOM
  for i = 1, #reply, 1000 do
    redis.call('RPUSH', key, unpack(reply, i, math.min(i + 999, #reply)))
  end
  redis.call('PEXPIRE', key, 10000)
  return reply
end
