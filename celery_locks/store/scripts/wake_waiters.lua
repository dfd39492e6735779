-- wake_waiters: give the free slots of some locks to those who wait, as a release would: a holder may have
-- lapsed, and a parked message has no process that notices. May be repeated.
-- KEYS after those below: h:<name>, q:<name> of each lock
-- returns 1 if a parked message was woken, else 0
-- Model: LapseOfRun in Park.tla.

--keys records index fence past usual due
--include clock
--include names
--include common
--include handover

for i = 7, #KEYS, 2 do
  local held, queue = KEYS[i], KEYS[i + 1]
  pass_on(held, queue)
  local first = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2]
  if redis.call('EXISTS', queue) == 0 then
    redis.call('ZREM', due, 'n' .. name_of(held))
    restore_index(held, queue) -- without it a lapsed holder would stay for as long as messages may wait
  elseif first and first ~= 'inf' and tonumber(first) > now() then
    redis.call('ZADD', due, 'LT', first, 'n' .. name_of(held))
  end
end
return woke_message and 1 or 0
