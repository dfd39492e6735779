-- confirm_wake: the broker has these messages; nobody needs to publish them again. May be repeated.
-- ARGV token, number ... as poll_due.lua returned them. A message that was parked again meanwhile has another
--      number, and stays.
-- returns how many were confirmed
-- Model: ConfirmWake in Park.tla.

--keys due parked

local confirmed = 0
for i = 1, #ARGV, 2 do
  local stored = redis.call('HGET', parked, ARGV[i])
  if stored and stored:match('^%S+ (%d+) ') == ARGV[i + 1] then
    redis.call('ZREM', due, ARGV[i])
    redis.call('HDEL', parked, ARGV[i])
    confirmed = confirmed + 1
  end
end
return confirmed
