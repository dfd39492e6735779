-- What there is to do when a hold ends: note it, and ask who comes next.

-- What a waiter is granted at first: so long it has to renew before the next in line is asked.
-- verbs.py knows the same number.
local CLAIM_MS = 1000
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
    local about, usual = cjson.decode(rest:sub(length + 1)), root .. 'usual'
    local task = about.task
    if not task or about.task_id then return end -- of a task's own lock only, not what its code held
    local before = redis.call('HGET', usual, task)
    if not before and redis.call('HLEN', usual) >= 1000 then
      redis.call('HDEL', usual, unpack(redis.call('HRANDFIELD', usual, 1)))
    end
    local holds = held_for .. ' ' .. (before or '')
    redis.call('HSET', usual, task, holds:match('^' .. string.rep('%d+ ', 16)) or holds)
  end)
end

-- Takes those that lapsed, [token, score]..., out of the zset `key` of a name. A waiter's score is
-- no moment, but its record has fence 0, and it is not noted.
local function drop(key, name, lapsed)
  for i = 1, #lapsed, 2 do
    redis.call('ZREM', key, lapsed[i])
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
  if head then drop(held, name, redis.call('ZRANGEBYSCORE', held, '-inf', now(), 'WITHSCORES')) end
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
