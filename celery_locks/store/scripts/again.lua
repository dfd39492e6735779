-- For verbs that must not be done again when their answer was lost and they are asked again: by then
-- another may have the lock, the claim or the item. The question carries a token; for ten seconds,
-- longer than a call and its repetitions take, the same one gets the same answer.
--   p:<token>  list  the answer, never an empty one; its numbers come back as texts

local function answered(question)
  local answer = redis.call('LRANGE', root .. 'p:' .. question, 0, -1)
  return #answer > 0 and answer
end

local function answer(question, reply)
  local key = root .. 'p:' .. question
  redis.call('DEL', key) -- a write that needs no memory: after it the script may go on under OOM
  for i = 1, #reply, 1000 do
    redis.call('RPUSH', key, unpack(reply, i, math.min(i + 999, #reply)))
  end
  redis.call('PEXPIRE', key, 10000)
  return reply
end
