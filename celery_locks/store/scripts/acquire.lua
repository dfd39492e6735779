-- acquire: grant a slot, or queue for one, or say who has them. Safe to repeat with one token.
-- ARGV 1 name  2 token  3 ttl ms  4 its record without fence and since; '-' for no job, no channel
--      and, unless there is nothing of the kind to say:
--      5 ms the caller counts as alive in the queue, 0 if it does not wait; after them, each with a
--      space before it, the owners (owners.py) that hold other locks and wait by this call
--      and again:
--      6 '1' to ask first whether this attempt of the job has ended elsewhere
--      7 name, 8 token of another lock to give back when this one is granted, or ''
--      9 token of a message that nobody has begun (attempt 0), whose place is to be taken, or ''
--      10 job that this one replaces, to be marked as ended when this is granted, or ''  11 ms to do so
--      12 the mark (marks.lua) that says the lock's work is done, or ''
--      13 'failed_only': work that failed may be done again; 'never': nor that, and 14 ms: the mark
--      is then left with the grant already
-- returns the fence (an integer): granted
--         {'replaced', fence}: granted in the place of 9, whose since it keeps
--         {'done', attempt}: it has; {'done', '?'}: it is just being replaced
--         {'once', mark}: the work is done
--         {'limit', n}: held with limit n, not ours
--         {'busy', lapses in ms, position, now, ticket or 0, [token, expiry, record]...}: up to 8
--         holders, only the twin if one runs this very message, and then the caller is not queued;
--         a grant that follows has a fence above the ticket

--include common

local name, token, ttl, rest = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local held = root .. 'h:' .. name

-- Two at most a call: as acquiring is what makes names, this is enough for nothing to pile up.
local function lapsed_names()
  return redis.call('ZRANGEBYSCORE', index, '-inf', now() - FORGET_MS, 'LIMIT', 0, 2)
end

-- A lock that is free, with nothing besides, is what most calls are about: it is granted before the
-- functions are made that only the others need.
local fence
local holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
if not holders[1] and not ARGV[6] then
  fence = grant(name, token, now() + ttl, rest)
  if not lapsed_names()[1] then return fence end
end

--include again
--include ends
--include marks

-- The attempt that a replaced message is marked to have ended with: more than any; as in verbs.py.
local SUPERSEDED = 1000000000000000
-- As long a message that is replaced waits for the word that the new one is sent.
local REPLACING_MS = 10000

local function forget_lapsed_names()
  for _, old in ipairs(lapsed_names()) do
    for _, key in ipairs({root .. 'h:' .. old, root .. 'q:' .. old}) do
      -- pcall: a foreign value under our key is not ours to delete.
      drop(key, old, redis.pcall('ZRANGE', key, 0, -1, 'WITHSCORES'))
    end
    redis.call('ZREM', index, old)
  end
end

if fence then
  forget_lapsed_names()
  return fence
end

-- Beyond this point somebody is there, or there is more to it.
local limit, job, attempt = rest:match('^%d+ (%d+) (%S+) (%d+)')
local alive, owners = (ARGV[5] or '0'):match('^(%d+)(.*)$')
alive = tonumber(alive)
limit, attempt = tonumber(limit), tonumber(attempt)

local function mark_begun()
  if ARGV[13] == 'never' then
    leave_mark(ARGV[12], 'b' .. token .. ' ' .. job .. ' ' .. attempt, ARGV[14])
  end
end

-- What a message leaves behind when it begins to run: its place in the queue, and those it replaced.
local function begin()
  if not ARGV[6] then return end
  mark_begun()
  if ARGV[8] ~= '' then
    if redis.call('ZREM', root .. 'h:' .. ARGV[7], ARGV[8]) == 1 then pass_on(ARGV[7]) end
    redis.call('HDEL', records, ARGV[8])
  end
  if ARGV[10] ~= '' then
    redis.call('SET', root .. 'd:' .. ARGV[10], string.format('%.0f', SUPERSEDED), 'PX', ARGV[11])
  end
end

local function take(since)
  local fence = grant(name, token, now() + ttl, rest, nil, since)
  begin()
  forget_lapsed_names()
  return fence
end

if ARGV[6] and ARGV[9] ~= '' then
  local before = answered(token)
  if before then return before end
end
if ARGV[6] == '1' then
  local ended = redis.call('GET', root .. 'd:' .. job)
  if ended and (ended == '?' or tonumber(ended) >= attempt) then return {'done', ended} end
end
if ARGV[6] and ARGV[12] ~= '' then
  local mark = redis.call('GET', root .. ARGV[12])
  if mark and is_final(mark, ARGV[13], token, job, attempt) then return {'once', mark} end
end
if not holders[1] then return take() end

-- The same token asks again: its reply was lost, or it was handed the lock and confirms.
local function again()
  redis.call('ZADD', index, 'GT', now() + ttl, name)
  redis.call('ZADD', held, now() + ttl, token)
  begin()
  return tonumber(redis.call('HGET', records, token):match('^%d+'))
end

local function free(other)
  redis.call('ZREM', held, other)
  redis.call('HDEL', records, other)
end

local function record(other)
  return redis.call('HGET', records, other) or ''
end

-- Whom of the same job there is: an earlier attempt, from which we take over (`retry` publishes
-- before it ends), and a twin, which runs this very message or a later one. Fences tell apart two
-- that were granted out of the queue: the first one runs.
local function kin(holders)
  if job == '-' then return end
  local former, twin
  local mine = tonumber(record(token):match('^%d+') or 0)
  for i = 1, #holders, 2 do
    local fence, theirs, tries = record(holders[i]):match('^(%d+) %d+ %d+ %d+ (%S+) (%d+)')
    if theirs == job and holders[i] ~= token and tonumber(holders[i + 1]) > now() then
      if tonumber(tries) < attempt then former = former or holders[i]
      elseif mine == 0 or tonumber(fence) < mine then twin = twin or {holders[i], holders[i + 1]} end
    end
  end
  return former, twin
end

-- Who asks again keeps its ticket; a new one is the last. Returns position and ticket.
local function enqueue()
  local queue = root .. 'q:' .. name
  local ticket = redis.call('ZSCORE', queue, token)
  redis.call('HSET', records, token, '0 ' .. (now() + alive) .. ' ' .. rest)
  redis.call('ZADD', index, 'GT', now() + alive, name)
  for owner in owners:gmatch('%S+') do redis.call('SET', root .. 'w:' .. owner, token, 'PX', alive) end
  if ticket then return redis.call('ZRANK', queue, token) + 1, tonumber(ticket) end
  ticket = next_number()
  redis.call('ZADD', queue, ticket, token)
  return redis.call('ZCARD', queue), ticket
end

-- It may stand in line, with the limit of then.
local function refuse(theirs)
  if redis.call('ZREM', root .. 'q:' .. name, token) == 1 then
    redis.call('HDEL', records, token)
    hand_over(name)
  end
  return {'limit', theirs}
end

local function busy(holders, queues)
  local position, ticket
  if queues then
    position, ticket = enqueue()
  else
    position, ticket = redis.call('ZCARD', root .. 'q:' .. name) + 1, 0
  end
  local reply = {'busy', holders[2] - now(), position, now(), ticket}
  for i = 1, math.min(#holders, 16), 2 do
    reply[#reply + 1] = holders[i]
    reply[#reply + 1] = holders[i + 1]
    reply[#reply + 1] = record(holders[i])
  end
  return reply
end

-- Not even a free slot is for a second run of one message; nor does it wait for one.
local function give_way(twin)
  free(token)
  redis.call('ZREM', root .. 'q:' .. name, token)
  hand_over(name)
  return busy(twin, false)
end

for i = 1, #holders, 2 do
  if holders[i] == token then
    local _, twin = kin(holders)
    return twin and give_way(twin) or again()
  end
end
local room = #holders / 2 < limit
while holders[1] and tonumber(holders[2]) <= now() do
  note_past('lapsed', name, holders[1], holders[2], LAPSED)
  free(table.remove(holders, 1))
  table.remove(holders, 1)
  room = true
end
local my_turn = false
if room then
  -- Those in line come first; only what they leave is ours to look at.
  my_turn = select(2, hand_over(name, token))
  holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
end
if holders[1] then
  local theirs = tonumber(record(holders[1]):match('^%d+ %d+ %d+ (%d+)'))
  if theirs and theirs ~= limit then return refuse(theirs) end
end
local former, twin = kin(holders)
if twin then return give_way(twin) end
if ARGV[6] and ARGV[9] ~= '' and redis.call('ZSCORE', held, ARGV[9]) then
  local since, theirs, tries = record(ARGV[9]):match('^%d+ (%d+) %d+ %d+ (%S+) (%d+)')
  if tries == '0' then
    free(ARGV[9])
    -- Until the new message is sent the old one shall wait, not run; if it never is, run after all.
    redis.call('SET', root .. 'd:' .. theirs, '?', 'PX', REPLACING_MS)
    return answer(token, {'replaced', take(tonumber(since))})
  end
end
if former then
  note_past('held', name, former, now(), 'its next attempt took it over')
  free(former)
end
if my_turn or former then redis.call('ZREM', root .. 'q:' .. name, token) end
if my_turn or former or #holders / 2 < limit then return take() end
return busy(holders, alive > 0)
