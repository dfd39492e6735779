-- commit_message: give the reservation to a message that was sent, in place of the queued one that it was
-- merged with. That one never runs then. If anything has changed since prepare_message, the new one never runs.
-- KEYS held is h:<name>, arguments a:<name>, prepared e:<job> of the message, replaced e:<job> of the other
--      (any key if there is none), saved p:<token>
-- ARGV 1 token  2 record without fence and since  3 token of the other message's reservation, '' if the lock
--      must be free  4 the arguments of the message  5 value, 6 ms of the mark of a message that never runs
-- returns {fence}, or {0} if it is not committed

--keys records index fence held arguments prepared replaced saved
--include clock
--include names
--include common
--include saved_replies

local token, record_tail, expected, text, superseded, ms = unpack(ARGV)
local earlier = saved_reply(saved)
if earlier then return earlier end

local holder = redis.call('ZRANGEBYSCORE', held, '(' .. now(), '(+inf', 'LIMIT', 0, 1)[1] or ''
local record = redis.call('HGET', records, holder) or ''
local since, attempt = record:match('^%d+ (%d+) %d+ %d+ %S+ (%d+)')
local is_prepared = (redis.call('GET', prepared) or ''):sub(1, 1) == '!'
if not is_prepared or holder ~= expected or holder ~= '' and attempt ~= '0' then
  redis.call('SET', prepared, superseded, 'PX', ms)
  return save_reply(saved, {0})
end

for _, each in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', '(+inf')) do -- the other message, and lapsed ones
  redis.call('ZREM', held, each)
  redis.call('HDEL', records, each)
end
local ttl = record_tail:match('^%d+')
local number = grant(held, token, now() + ttl, record_tail, nil, tonumber(since))
redis.call('SET', arguments, token .. ' ' .. text, 'PX', ttl)
if expected ~= '' then redis.call('SET', replaced, superseded, 'PX', ms) end
redis.call('DEL', prepared)
return save_reply(saved, {number})
