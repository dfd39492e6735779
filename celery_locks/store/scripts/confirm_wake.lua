-- confirm_wake: the broker has these messages; nobody needs to publish them again. May be repeated.
-- ARGV token, number, keep ... as poll_due.lua returned them. A message that was parked again meanwhile has
--      another number, and stays. With keep '1' the message is kept until it starts (keep_message.lua).
-- returns how many were confirmed
-- Model: ConfirmWake in Park.tla.

--keys due parked kept
--include clock

local confirmed = 0
for i = 1, #ARGV, 3 do
  local number, message = (redis.call('HGET', parked, ARGV[i]) or ''):match('^%S+ (%d+) (.*)$')
  if number == ARGV[i + 1] then
    if ARGV[i + 2] == '1' then
      redis.call('HSET', kept, ARGV[i], string.format('%.0f ', now()) .. message)
    end
    redis.call('ZREM', due, ARGV[i])
    redis.call('HDEL', parked, ARGV[i])
    confirmed = confirmed + 1
  end
end
return confirmed
