-- stop: ask the holders of a lock, or one of them, to stop; their next renewal tells them.
-- KEYS saved is p:<request id> (saved_replies.lua)
-- ARGV 1 token, or '' for every holder  2 by whom, '' to leave it out of the log  3 why
-- returns {now, [token, expiry, record]...}: the holders that were asked

--keys records notices log held saved
--include clock
--include names
--include saved_replies
--include action_log
--include holder_notices

local earlier = saved_reply(saved)
if earlier then return earlier end
local reply = {now()}
local holders = redis.call('ZRANGEBYSCORE', held, '(' .. now(), '(+inf', 'WITHSCORES')
for i = 1, #holders, 2 do
  if ARGV[1] == '' or ARGV[1] == holders[i] then
    leave_notice(holders[i], '', 86400000)
    reply[#reply + 1] = holders[i]
    reply[#reply + 1] = holders[i + 1]
    reply[#reply + 1] = redis.call('HGET', records, holders[i]) or ''
  end
end
if #reply > 1 and ARGV[2] ~= '' then log_action('stop', name_of(held), ARGV[2], ARGV[3], reply) end
return save_reply(saved, reply)
