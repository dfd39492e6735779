-- What every verb shares; the loader puts this text in front of each of them.
--
-- KEYS[1] is the root of one shard, "<prefix>:{<shard>}:". Every key is the root plus one of:
--   h:<name>  zset    token -> expiry ms        the holders; lapsed ones stay until someone needs the room
--   q:<name>  zset    token -> ticket           the waiters, first come first served
--   records   hash    token -> record           what each holder and waiter is, and got
--   index     zset    name  -> latest expiry ms  which locks there are, without SCAN; may be late, never early
--   fence     string  the last number given out, as fence or as ticket
--   log       stream  what operators did, the last 1000 or so (log.lua)
--   past      stream  holds of more than a second that ended or lapsed, the last 1000 or so (note_past)
--   usual     hash    task -> "<ms> <ms> ...", its last 16 such holds, latest first; 1000 tasks at most
--   stops     hash    token -> 1                holders that are asked to stop (stop.lua)
--   r:<token> string  "<length of by> <by><why>"  it was taken by force; two ttl long, a minute at least
--   and what is left when work ends (marks.lua), buffers (batches.lua) and tickets (take.lua)
--
-- record = "<fence> <since> <ttl> <limit> <job> <attempt> <channel> <length of name> <name><about>",
-- times in ms by this server.
-- Attempt 0 is a message that nobody has begun. A waiter has fence 0 and, as since, the moment until
-- which it counts as alive.
--
-- Kept by every verb: where a waiter lives, no slot is free, so no holders means no queue.

local root = KEYS[1]
local records, index = root .. 'records', root .. 'index'

-- This server's clock, asked once, and by a call that needs it only: most releases do not.
local moment
local function micros()
  if not moment then
    local clock = redis.call('TIME')
    moment = clock[1] * 1000000 + clock[2]
  end
  return moment
end
local function now() return math.floor(micros() / 1000) end

-- What a waiter is granted at first: so long it has to renew before the next in line is asked.
-- verbs.py knows the same number.
local CLAIM_MS = 1000
-- A lapsed name is forgotten this long after; until then its holder may still revive it.
local FORGET_MS = 60000
-- The attempt that a replaced message is marked to have ended with: more than any; as in verbs.py.
local SUPERSEDED = 1000000000000000
-- As long a message that is replaced waits for the word that the new one is sent.
local REPLACING_MS = 10000
-- Why a hold ended that nobody gave back (note_past).
local LAPSED = 'it was not renewed'

-- A hold ended, 'held' or 'lapsed', at so many ms; `why` is '' if by its own release. To be called
-- before its record goes. Nothing here may fail: a release is worth more. Not noted is what nobody
-- works under (what is left of at_least '-', a message's place 'q'), what lasted no longer than a
-- claim, and more of one call than anybody reads.
local noted = 0
local function note_past(act, name, token, ended, why)
  if noted >= 16 or token:find('^[-q]') then return end
  local record = redis.call('HGET', records, token) or ''
  local held_for = ended - (record:match('^[1-9]%d* (%d+) ') or ended)
  if held_for <= CLAIM_MS then return end
  noted = noted + 1
  held_for = string.format('%.0f', held_for)
  redis.pcall('XADD', root .. 'past', 'MAXLEN', '~', 1000, '*', 'act', act, 'name', name, 'why', why,
    'held', held_for, 'from', token, 'from', string.format('%.0f', ended), 'from', record)
  if why ~= '' then return end
  -- Kept apart, so that the past of a rare task is not lost among frequent ones.
  pcall(function()
    local length, rest = record:match('^%S+ %S+ %S+ %S+ %S+ %S+ %S+ (%d+) (.*)$')
    local task, usual = cjson.decode(rest:sub(length + 1)).task, root .. 'usual'
    if not task then return end
    local before = redis.call('HGET', usual, task)
    if not before and redis.call('HLEN', usual) >= 1000 then
      redis.call('HDEL', usual, unpack(redis.call('HRANDFIELD', usual, 1)))
    end
    local holds = held_for .. ' ' .. (before or '')
    redis.call('HSET', usual, task, holds:match('^' .. string.rep('%d+ ', 16)) or holds)
  end)
end

-- The hybrid clock: strictly increasing, and past anything given before a restart or a FLUSHALL.
local function next_number()
  local key, number = root .. 'fence', micros()
  local last = tonumber(redis.call('SET', key, string.format('%.0f', number), 'GET') or 0)
  if number > last then return number end
  redis.call('SET', key, string.format('%.0f', last + 1))
  return last + 1
end

-- The holder's zset goes last: whatever fails before it (a key of a foreign type) leaves no lock.
local function grant(name, token, expiry, rest, fence, since)
  fence = fence or next_number()
  redis.call('ZADD', index, 'GT', expiry, name)
  redis.call('HSET', records, token, string.format('%.0f %.0f ', fence, since or now()) .. rest)
  redis.call('ZADD', root .. 'h:' .. name, expiry, token)
  return fence
end

local function drop_lapsed(name)
  local held = root .. 'h:' .. name
  local lapsed = redis.call('ZRANGEBYSCORE', held, '-inf', now(), 'WITHSCORES')
  for i = 1, #lapsed, 2 do
    redis.call('ZREM', held, lapsed[i])
    note_past('lapsed', name, lapsed[i], lapsed[i + 1], LAPSED)
    redis.call('HDEL', records, lapsed[i])
  end
end

-- Gives free slots to the first living waiters, for the claim window, and tells each its fence.
-- Nobody listening on a waiter's channel means its process is gone: the next one is asked.
-- Returns how many slots are taken then, and true if the next one is for the waiter `self`, which
-- is not granted here.
local function hand_over(name, self)
  local held, queue = root .. 'h:' .. name, root .. 'q:' .. name
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  if head then drop_lapsed(name) end
  local taken = redis.call('ZCARD', held)
  while head do
    local record = redis.call('HGET', records, head) or ''
    local alive, rest, limit, channel = record:match('^0 (%d+) (%d+ (%d+) %S+ %d+ (%S+) .*)$')
    if limit and taken >= tonumber(limit) then break end
    if head == self then return taken, true end
    redis.call('ZREM', queue, head)
    local heard = alive and tonumber(alive) > now() and 1 or 0
    local fence = heard == 1 and next_number()
    if heard == 1 and channel ~= '-' then
      heard = redis.pcall('PUBLISH', channel, string.format('%s %.0f', head, fence))
    end
    if heard ~= 0 then
      grant(name, head, now() + CLAIM_MS, rest, fence)
      taken = taken + 1
      if taken >= tonumber(limit) then break end
    elseif alive then
      redis.call('HDEL', records, head)
    end
    head = redis.call('ZRANGE', queue, 0, 0)[1]
  end
  return taken
end

-- A slot came free: hand it over, or forget the name if nobody holds it or waits for it.
local function pass_on(name)
  local used = redis.call('EXISTS', root .. 'h:' .. name, root .. 'q:' .. name)
  if used == 0 or hand_over(name) == 0 then redis.call('ZREM', index, name) end
end
