-- override_rate: an operator pauses a rate or sets another, or ends that. Safe to repeat with one request id.
-- KEYS after those below: r:<rate> d:<rate> rates p:<request id>   (lib/rates.lua, saved_replies.lua)
-- ARGV 1 the rate  2 'pause' or 'rate'  3 '1' to set it, '0' to end it  4 ms until it ends by itself, or 0
--      5 the limits, joined by ',', or '0' for a pause  6 about, as in a marker (overrides.lua)
--      7 by whom, 8 why, 9 the name of the action, 10 the new rate, or '': for the log
-- returns {1 if it was set before, else 0}
--
-- The log entry (action_log.lua) is written in the same step. Nothing is logged if nothing was to end.

--keys log rate delayed listed saved
--include clock
--include saved_replies
--include action_log
--include rate_overrides

local earlier = saved_reply(saved)
if earlier then return earlier end
local field, sets, ends = ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
local was_set = live_override(redis.call('HGET', rate, field)) and 1 or 0
if sets then
  ends = ends > 0 and now() + ends or 0
  redis.call('HSET', rate, field, string.format('%.0f %.0f %s %s', ends, now(), ARGV[5], ARGV[6]))
else
  redis.call('HDEL', rate, field)
end
if sets or was_set == 1 then
  log_action(ARGV[9], ARGV[1], ARGV[7], ARGV[8], {}, {'rate', ARGV[10], 'until', string.format('%.0f', ends)})
end

-- The times until which the rate says something, and until which it is listed, in ms.
local lasts, is_listed = now(), now()
local fields = redis.call('HGETALL', rate)
for i = 1, #fields, 2 do
  local name, value = fields[i], fields[i + 1]
  if name == 'pause' or name == 'rate' then
    is_listed = math.max(is_listed, live_override(value) and override_ends(value) or 0)
  elseif name ~= 'limits' then
    lasts = math.max(lasts, math.ceil(value / 1000))
    if name == 'n' then is_listed = math.max(is_listed, math.ceil(value / 1000)) end
  end
end
redis.call('PEXPIRE', rate, math.max(lasts, is_listed) - now() + 1)
for _, from in ipairs({0, -1}) do
  local score = redis.call('ZRANGE', delayed, from, from, 'WITHSCORES')[2]
  is_listed = math.max(is_listed, math.ceil(math.abs(score or 0) / 1000))
end
redis.call('ZADD', listed, is_listed, ARGV[1])
local latest = redis.call('ZRANGE', listed, -1, -1, 'WITHSCORES')[2]
redis.call('PEXPIRE', listed, string.format('%.0f', latest - now() + 3600000))
return save_reply(saved, {was_set})
