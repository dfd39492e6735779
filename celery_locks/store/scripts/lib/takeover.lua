-- Part of acquire: other holders of the same job.
-- Model: SameJob, Earlier, Copies and YieldTo in Lock.tla.

local published_by = options.published_by and ',' .. options.published_by[1] .. ','

-- Whether a later attempt takes the lock over from this holder of an earlier one: from a slot under which
-- nothing runs (attempt 0, kept, reserved), and from the run that published the later attempt. Another run
-- of the earlier attempt is a redelivered copy, and nobody has told it to end. A message that does not say
-- which run published it (an older release) takes over from each.
local function gives_way(holder, number, tries)
  return tries == '0' or not published_by or holder:find('^[-qk]') or published_by:find(',' .. number .. ',', 1, true)
end

-- Returns the holder of an earlier attempt, from which this attempt takes over (`retry` publishes
-- before the attempt ends), and a copy: a holder, {token, expiry}, that runs this message, a later one or
-- an earlier one that does not give way. Of two copies that were granted from the queue, the one with the
-- lower fence runs.
local function same_job(holders)
  if job == '-' then return end
  local earlier, copy
  local own_fence = tonumber(record_of(token):match('^%d+') or 0)
  for i = 1, #holders, 2 do
    local number, holder_job, tries = record_of(holders[i]):match('^(%d+) %d+ %d+ %d+ (%S+) (%d+)')
    if holder_job == job and holders[i]:match('^[^/]+') ~= token and tonumber(holders[i + 1]) > now() then
      if tonumber(tries) < attempt and gives_way(holders[i], number, tries) then
        earlier = earlier or holders[i]
      elseif own_fence == 0 or tonumber(number) < own_fence then
        copy = copy or {holders[i], holders[i + 1]}
      end
    end
  end
  return earlier, copy
end

-- The holders but for an earlier attempt of the same job, which is not in its way.
local function others_than(holders, earlier)
  local others = {}
  for i = 1, #holders, 2 do
    if holders[i] ~= earlier then
      others[#others + 1] = holders[i]
      others[#others + 1] = holders[i + 1]
    end
  end
  return others
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
