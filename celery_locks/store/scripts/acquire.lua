-- acquire: grant a slot, or join the queue, or report who holds the lock. Safe to repeat with one token.
-- KEYS after the 11 below: the keys of the options, in their order; then w:<owner> for each owner
--      (owners.py) that holds other locks and waits in this call
-- ARGV 1 token  2 record without fence and since; '-' for no job or no channel
--      3 the latest number that the caller got from this shard, 0 for none; '' for a caller that the guard
--        (guard.lua) does not concern
--      4... options, each with its values:
--      option     keys               values
--      wait                          ms for which the caller counts as alive in the queue; the first option, if given
--      ended      e:<job>                         reject the call if this attempt of the job has ended (reject.lua)
--      release    h: q: a:<name>     token        a reservation to release with the grant (on_grant.lua)
--      replace    e:<job> p:<token>  token        a reservation to replace, and its job (replace_reservation.lua)
--      supersede  e:<job>            ms           a job to mark as ended with the grant
--      newest     n:<name>           ms           note this start, and reject a message without its reservation
--                                                 after a later one has started (leave_message.lua)
--      once       o:<name>           reuse, ms    the mark that the work is completed (reject.lua)
--      join       j:<name>           fence        reject the call with the result of a run that has this fence
--                                                 or a later one (reject.lua)
--      forget     kept               token        the message has started: it is not kept any longer (keep_message.lua)
--      published_by                  fences       of the run that published this retry, with commas: it takes over
--                                                 from no other run of its job (takeover.lua)
--      also       h:<name> q:<name>  record       a further lock: all are granted or none (several.lua); its
--                                                 token is the first one's with '/1', '/2', ...
--      park       parked g:<name>    token, attempt, record, message, most, group, 'all' or 'latest', rank, the
--                                                 ticket with which the caller waited or 0   if the lock is
--                                                 busy, park this message (park.lua), unless so many wait already
--      rate       r:<rate> d:<rate> rates p:<token>   µs, limits   a rate limit (rates.lua); there may be several
-- returns the fence (an integer): granted
--         {'start_in', fence, µs}: granted, and the caller starts then, within a second (rates.lua)
--         {'limited', ...}: the lock is free, but a rate is not (rates.lua); nothing is held
--         {'replaced', fence}: granted in place of a reservation, whose `since` it keeps
--         {'ended', attempt}: the attempt has ended; {'ended', '?'}: the message is being replaced, or
--         is not committed yet (commit_message.lua)
--         {'completed', mark}: the work is completed
--         {'parked', position}: the message is parked and need not be kept elsewhere
--         {'several', µs until the start, fence, ...}: all are granted; {'busy_at', n, {'busy', ...}}: lock n, from 0, is busy
--         {'granted', fence, n}: granted, beside holders with another limit, n
--         {'busy', ms until a holder lapses, position, now, ticket or 0, n or 0, marker or '',
--         [token, expiry, record]...}: up to 8 holders; only the copy if another copy of this message, or of
--         an earlier attempt, runs, and then the caller is not queued. A later grant has a fence above the ticket. n is the
--         limit of the holders if it is another than the caller's and neither shares the lock. With the marker of a pause
--         or a guard (overrides.lua) there may be no holders, and an earlier attempt of the job is not listed.
--
-- lib/common.lua has the rule for callers with different limits. A pause applies to all but reservations
-- (token 'q'): nothing runs by them, so calls can be published, and recognised as duplicates, meanwhile.
-- Model: Acquire in Lock.tla; with the option park, AcquireOrPark in Park.tla.

--keys records index fence past usual completed patterns due epoch held queue
--include clock
--include names
--include common
--include guard

local token, record_tail, known = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ttl = record_tail:match('^%d+')

-- The number for a grant, or nil if a pattern or the guard may forbid it.
local function number_for_grant()
  local number = next_number()
  return not has_patterns and not (known and guarded_until(known, ttl)) and number or nil
end

-- A lock without holders has no live waiters: whoever removes the last holder hands the slot over.
-- The hot paths, a free lock and no options or rates only, return before the functions of the others are created.
local holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
if not holders[1] and (not ARGV[4] or ARGV[4] == 'wait' and not ARGV[6]) then
  local number = number_for_grant()
  if number then return grant(held, token, now() + ttl, record_tail, number) end
end

--include options

local limit, job, attempt = record_tail:match('^%d+ (%d+) (%S+) (%d+)')
limit, attempt = tonumber(limit), tonumber(attempt)

--include rates

-- Who has a promise of a rate: the job, because each run of its message has another token.
local rate_member = job ~= '-' and job or token

-- The reply of a grant: the fence, and with rates the time until the start.
local function granted(number)
  if not start_at or start_at <= micros then return number end
  return {'start_in', number, start_at - micros}
end

local is_free = not holders[1] and not has_patterns and not options.also
if is_free and options.rates and has_rates_only then
  local number = number_for_grant()
  local reply = number and rate_limit(options.rates, rate_member)
  if reply then return reply end
  if number then
    grant(held, token, now() + ttl, record_tail, number)
    count_start(options.rates, rate_member)
    return granted(number)
  end
  is_free = false
end

--include saved_replies
--include handover
--include marks
--include patterns
--include change_patterns

local function record_of(holder)
  return redis.call('HGET', records, holder) or ''
end

local function remove_holder(holder)
  redis.call('ZREM', held, holder)
  redis.call('HDEL', records, holder)
end

--include on_grant

local function grant_slot(number, since)
  number = grant(held, token, now() + ttl, record_tail, number, since)
  on_grant()
  return granted(number)
end

-- The rates are decided when the lock is free. Returns the reply if a rate is not, and hands the slot on.
local function limited()
  local reply = options.rates and rate_limit(options.rates, rate_member)
  if not reply then return end
  remove_holder(token)
  redis.call('ZREM', queue, token)
  pass_on(held, queue)
  return reply
end

--include reject
--include replace_reservation

-- A repeated call gets its earlier reply: the reservation that it replaced is gone.
local reply = options.replace and saved_reply(options.replace[2]) or rejection()
if reply then return reply end
if is_free then
  local number = number_for_grant()
  if number then return limited() or grant_slot(number) end
end

-- Returns the marker of the guard, or nil; `adds` it to the lock, so that nobody passes this caller.
local function guard_marker(held, adds)
  local ends, began = nil, nil
  if known then ends, began = guarded_until(known, ttl) end
  if not ends then return end
  local marker = string.format('~guard %.0f %.0f 0 %s', math.ceil(ends / 1000), -began / 1000, GUARD_ABOUT)
  if adds then add_marker(held, marker) end
  return marker
end

--include enqueue
--include park
--include takeover

if options.also then
--include several
  return acquire_all()
end

-- The token of a reservation is made of the task's id, which a caller may use for two calls. Their
-- records differ in what describes the holder; a repeated call has the same there.
local function is_of_another_call()
  local about = record_tail:match('^%d+ %d+ %S+ 0 %S+ (.*)$')
  return about and record_of(token):match('^%d+ %d+ %d+ %d+ %S+ %d+ %S+ (.*)$') ~= about
end

-- The same token acquires again: its reply was lost, or it was granted the lock and claims it.
local function confirm()
  redis.call('ZADD', index, 'GT', now() + ttl, name_of(held))
  redis.call('ZADD', held, now() + ttl, token)
  on_grant()
  return granted(tonumber(redis.call('HGET', records, token):match('^%d+')))
end

local markers = split_markers(holders)
for i = 1, #holders, 2 do
  if holders[i] == token then
    local _, copy = same_job(holders)
    if copy then return yield_to(copy) end
    if not is_of_another_call() then return limited() or confirm() end
    if tonumber(holders[i + 1]) > now() then return busy({holders[i], holders[i + 1]}, false) end
  end
end

local matching, over = match_patterns(name_of(held))
if over[1] then drop_patterns(over) end
local has_room = apply_patterns(held, queue, markers, matching, options.wait or options.park)
local operator_limit, pause, left = read_overrides(held, markers)
local guard = guard_marker(held, options.wait or options.park)
pause = pause or matching[1] or guard
-- A reservation comes after a run that waits for the end of the pause.
if is_reservation(token) and is_reservation(redis.call('ZRANGE', queue, 0, 0)[1] or token) then pause = nil end
has_room = has_room or left < #markers or fits(limit, #holders / 2, limit == 0, operator_limit)
while holders[1] and tonumber(holders[2]) <= now() do
  note_past('lapsed', held, holders[1], holders[2], LAPSED)
  remove_holder(table.remove(holders, 1))
  table.remove(holders, 1)
  has_room = true
end
local is_behind = false
if has_room and not pause then
  -- Waiters come first; this call may use only the slots that they leave.
  -- hand_over stops at this caller's own ticket.
  is_behind = select(2, hand_over(held, queue, token))
  holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
  split_markers(holders)
end

local held_limit = tonumber(holders[1] and record_of(holders[1]):match('^%d+ %d+ %d+ (%d+)') or limit)
local shared = held_limit == 0
if held_limit == limit or shared or limit == 0 or operator_limit then held_limit = nil end
local earlier, copy = same_job(holders)
if copy then return yield_to(copy) end
local replaced = options.replace and replace_reservation()
if replaced then return replaced end
if pause then return park() or busy(others_than(holders, earlier), options.wait, held_limit, pause) end
local takes_over = earlier and (shared == (limit == 0) or #holders == 2)
if earlier and not takes_over then
  take_over(earlier)
  holders = others_than(holders, earlier)
  hand_over(held, queue, token)
end
if not (takes_over or fits(limit, #holders / 2, shared, operator_limit) and not is_behind) then
  return park() or busy(holders, options.wait, held_limit)
end
reply = limited()
if reply then return reply end
if takes_over then take_over(earlier) end
redis.call('ZREM', queue, token)
reply = grant_slot()
return held_limit and type(reply) == 'number' and {'granted', reply, held_limit} or reply
