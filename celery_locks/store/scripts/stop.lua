-- stop: ask the holders of a lock, or one of them, to stop; their next renewal tells them.
-- ARGV 1 name  2 token, or '' for every holder  3 by whom, '' to leave it out of the log  4 why
--      5 request id (saved_replies.lua)
-- returns {now, [token, expiry, record]...}: the holders that were asked
--
-- stops: hash token -> 1. An entry stays until its holder is gone; this script deletes those of the gone.

--include common
--include saved_replies
--include action_log

local saved = saved_reply(ARGV[5])
if saved then return saved end
local held, stops = root .. 'h:' .. ARGV[1], root .. 'stops'
for _, token in ipairs(redis.call('HKEYS', stops)) do
  if redis.call('HEXISTS', records, token) == 0 then redis.call('HDEL', stops, token) end
end
local reply = {now()}
local holders = redis.call('ZRANGEBYSCORE', held, '(' .. now(), '+inf', 'WITHSCORES')
for i = 1, #holders, 2 do
  if ARGV[2] == '' or ARGV[2] == holders[i] then
    redis.call('HSET', stops, holders[i], 1)
    reply[#reply + 1] = holders[i]
    reply[#reply + 1] = holders[i + 1]
    reply[#reply + 1] = redis.call('HGET', records, holders[i]) or ''
  end
end
if #reply > 1 then
  redis.call('PEXPIRE', stops, 86400000)
  if ARGV[3] ~= '' then log_action('stop', ARGV[1], ARGV[3], ARGV[4], reply) end
end
return save_reply(ARGV[5], reply)
