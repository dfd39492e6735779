-- Part of acquire and throttle: rate limits (GCRA), by the server's clock in µs.
--
--   r:<rate>   hash    <period>r  when the next start can be promised, for each period s, m, h, d
--                      <period>s  when the next start may take place
--                      n          nothing starts before this (push_back.lua)
--                      limits     those of the last caller, for the list
--                      pause, rate   what operators set (override_rate.lua), each as
--                                    "<until ms, or 0> <since ms> <limits, or 0> <about>"
--                      back       when the next caller of a paused rate comes back
--   d:<rate>   zset    job, or token of a caller without a job -> its promised start. While the rate is
--                      paused there are no promises: then it is the time at which it comes back, negative
--   rates      zset    rate -> ms of its last promise, or of the end of what operators set: an index for the list
--   p:<token>  string  the start of a call whose reply may be lost, for ten seconds
-- Each expires when it says nothing about the future any more.
--
-- limits = "<count>/<period>:<charge>:<tolerance>[:<cost>] ...": a start takes `charge` from what follows,
-- and takes place up to `tolerance` early (burst). `cost` is a factor in the charge, for operators' limits.
-- A promise is a start that is reserved in `r`; the start itself is counted in `s`, so that a caller that
-- comes late does not come too close to the next.

-- A start in the near future is granted now, and the caller sleeps: it needs no second call.
local START_AHEAD = 1000000
-- A message (the caller is a job, "j<id>") takes about this long to come back. A start before that would
-- be late, and delay all that follow.
local MESSAGE_RETURNS = 250000
-- A promise whose caller has not come for so long is forgotten.
local FORGET_PROMISE = 3600000000
-- Callers of a paused rate come back after this time, and so far apart: nobody knows when it is resumed,
-- and the workers shall have little to do with messages that may not start.
local COMES_BACK, BACK_APART = 30000000, 10000

--include rate_overrides

local function keep_for(key, us)
  local ms = math.ceil(us / 1000) + 1
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end

local function parse_limits(text)
  local limits = {}
  for period, charge, tolerance, cost in text:gmatch('/(%a):(%d+):(%d+):?([%w.+-]*)') do
    limits[#limits + 1] = {period = period, charge = tonumber(charge), tolerance = tonumber(tolerance),
      cost = tonumber(cost) or 1}
  end
  return limits
end

-- Read the times of the limits; returns the fields n, pause, rate, back.
local function read_times(rate)
  local fields = {'n', 'pause', 'rate', 'back'}
  for _, limit in ipairs(rate.limits) do
    fields[#fields + 1] = limit.period .. 'r'
    fields[#fields + 1] = limit.period .. 's'
  end
  local values = redis.call('HMGET', rate.key, unpack(fields))
  for i, limit in ipairs(rate.limits) do
    limit.reserved, limit.started = tonumber(values[3 + 2 * i] or 0), tonumber(values[4 + 2 * i] or 0)
  end
  return values
end

-- An operator's limits take the place of the caller's; its cost still applies.
local function apply_override(rate, override)
  local cost = rate.limits[1].cost
  rate.limits = parse_limits(override:match('^%d+ %d+ (%S+)'))
  for _, limit in ipairs(rate.limits) do limit.charge = math.ceil(limit.charge * cost) end
  read_times(rate)
end

-- Read a rate out of its option, {r:<rate>, d:<rate>, rates, p:<token>, patience, limits}. `at` is
-- when the caller can start as far as this rate is concerned; `fits` if its promise allows it now.
local function read_rate(option, member)
  local rate = {key = option[1], delayed = option[2], listed = option[3], patience = tonumber(option[5]),
    text = option[6], limits = parse_limits(option[6])}
  local fields = read_times(rate)
  local override = live_override(fields[3])
  if override then apply_override(rate, override) end
  rate.pause, rate.back = live_override(fields[2]), tonumber(fields[4] or 0)
  local start_at = math.max(micros, tonumber(fields[1] or 0))
  local free_at = start_at
  for _, limit in ipairs(rate.limits) do
    start_at = math.max(start_at, limit.started - limit.tolerance)
    free_at = math.max(free_at, start_at, limit.reserved - limit.tolerance)
  end
  rate.at = free_at
  local score = redis.call('ZSCORE', rate.delayed, member)
  rate.is_noted, rate.promised = score, tonumber(score or 0)
  if rate.promised > micros - FORGET_PROMISE then
    start_at = math.max(start_at, rate.promised)
    rate.fits = start_at - micros <= START_AHEAD
    -- Too early: it keeps its promise. Too late: it needs a new one.
    rate.keeps = not rate.fits and rate.promised > micros
    if rate.fits then rate.at = start_at elseif rate.keeps then rate.at = rate.promised end
  end
  return rate
end

-- Count a start at `at` as reserved, as started, or both, in this order: one write.
local function write_times(rate, at, ...)
  local last, values = 0, {'limits', rate.text}
  for _, field in ipairs({...}) do
    for _, limit in ipairs(rate.limits) do
      limit[field] = math.max(at, limit[field], field == 'reserved' and limit.started or 0) + limit.charge
      last = math.max(last, limit[field])
      values[#values + 1] = limit.period .. field:sub(1, 1)
      values[#values + 1] = string.format('%.0f', limit[field])
    end
  end
  redis.call('HSET', rate.key, unpack(values))
  keep_for(rate.key, last - micros)
end

-- Note that a caller is delayed until `at`; the score is its promised start, or -at.
local function note_delayed(rate, member, at, score)
  local kept, forgotten = at - micros + FORGET_PROMISE, micros - FORGET_PROMISE
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', rate.delayed, -forgotten, forgotten, 'LIMIT', 0, 100)) do
    redis.call('ZREM', rate.delayed, old)
  end
  redis.call('ZADD', rate.delayed, score, member)
  keep_for(rate.delayed, kept)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', rate.listed, '-inf', forgotten / 1000, 'LIMIT', 0, 10)) do
    redis.call('ZREM', rate.listed, old)
  end
  redis.call('ZADD', rate.listed, 'GT', math.ceil(at / 1000), name_of(rate.key))
  keep_for(rate.listed, kept)
end

-- How many callers the rate delays. Not those whose time is past: they wait for a worker, or do not come at
-- all, as after a revoke, and would be counted until their promise is forgotten.
local function count_delayed(delayed)
  return redis.call('ZCARD', delayed) - redis.call('ZCOUNT', delayed, -micros, micros)
end

-- How many of them come before this one, which is delayed.
local function count_ahead(delayed, member)
  return redis.call('ZRANK', delayed, member) - redis.call('ZCOUNT', delayed, -micros, micros)
end

-- Promise the caller the start at rate.at, after those who have a promise already.
local function promise(rate, member)
  write_times(rate, rate.at, 'reserved')
  note_delayed(rate, member, rate.at, rate.at)
end

-- The reply for rate `number`, which is paused. No start is reserved: a caller with the patience for it
-- comes back, and then gets one if the rate is resumed.
local function paused(number, rate, member)
  local ends = override_ends(rate.pause) * 1000
  local at = math.max(rate.promised, rate.back, math.min(ends, micros + COMES_BACK))
  local comes_back = at - micros <= rate.patience
  if comes_back then
    redis.call('HSET', rate.key, 'back', string.format('%.0f', at + BACK_APART), 'limits', rate.text)
    keep_for(rate.key, at + BACK_APART - micros)
    if rate.promised <= micros then note_delayed(rate, member, at, -at) end
  elseif ends < micros + WITHOUT_END / 2 then
    at = ends
  end
  local is_counted = comes_back or math.abs(rate.promised) > micros
  local others = count_delayed(rate.delayed) - (is_counted and 1 or 0)
  return {'limited', number, at - micros, others, comes_back and 1 or 0, rate.pause}
end

local rates -- those that have to be consumed with the start
local start_at

-- Returns nil if the caller may start, at `start_at`; then count_start has to follow. Else the reply:
-- {'limited', number of the rate, µs until it is free, how many are promised earlier, 1 if promised}; if
-- the rate is paused {'limited', number, µs, how many others are delayed, 1 if it may ask again then, pause}.
-- Only the rate with the latest start makes a promise: a promise far ahead in a rate that others share
-- would be lost for them.
local function rate_limit(options, member)
  now()
  -- A repeated call has its start already.
  local saved = redis.call('GET', options[1][4])
  if saved then
    start_at = tonumber(saved)
    return
  end
  rates, start_at = {}, micros
  for i, option in ipairs(options) do
    rates[i] = read_rate(option, member)
    if rates[i].pause then return paused(i, rates[i], member) end
    if rates[i].fits then start_at = math.max(start_at, rates[i].at) end
  end
  local latest
  for i, rate in ipairs(rates) do
    if (rate.keeps or rate.at > start_at) and (not latest or rate.at > rates[latest].at) then latest = i end
  end
  if not latest then return end
  local rate = rates[latest]
  if not rate.keeps and rate.at - micros <= rate.patience then
    if member:sub(1, 1) == 'j' then rate.at = math.max(rate.at, micros + MESSAGE_RETURNS) end
    promise(rate, member)
    rate.keeps = true
  end
  local ahead = rate.keeps and count_ahead(rate.delayed, member) or count_delayed(rate.delayed)
  return {'limited', latest, rate.at - micros, ahead, rate.keeps and 1 or 0}
end

local function count_start(options, member)
  if not rates then return end
  for _, rate in ipairs(rates) do
    if rate.is_noted then redis.call('ZREM', rate.delayed, member) end
    if rate.fits then
      write_times(rate, start_at, 'started')
    else
      write_times(rate, start_at, 'reserved', 'started')
    end
  end
  redis.call('SET', options[1][4], string.format('%.0f', start_at), 'PX', 10000)
  rates = nil
end
