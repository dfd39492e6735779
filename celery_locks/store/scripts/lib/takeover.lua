-- Part of acquire: other holders of the same job.

-- Returns the holder of an earlier attempt, from which this attempt takes over (`retry` publishes
-- before the attempt ends), and a copy: a holder, {token, expiry}, that runs this message or a later
-- one. Of two copies that were granted from the queue, the one with the lower fence runs.
local function same_job(holders)
  if job == '-' then return end
  local earlier, copy
  local own_fence = tonumber(record_of(token):match('^%d+') or 0)
  for i = 1, #holders, 2 do
    local number, holder_job, tries = record_of(holders[i]):match('^(%d+) %d+ %d+ %d+ (%S+) (%d+)')
    if holder_job == job and holders[i] ~= token and tonumber(holders[i + 1]) > now() then
      if tonumber(tries) < attempt then
        earlier = earlier or holders[i]
      elseif own_fence == 0 or tonumber(number) < own_fence then
        copy = copy or {holders[i], holders[i + 1]}
      end
    end
  end
  return earlier, copy
end

local function take_over(earlier)
  note_past('held', held, earlier, now(), 'its next attempt took it over')
  remove_holder(earlier)
end

-- A second copy of a running message gets no slot, even a free one, and does not wait for one.
local function yield_to(copy)
  remove_holder(token)
  redis.call('ZREM', queue, token)
  hand_over(held, queue)
  return busy(copy, false)
end
