-- prune: delete entries that nobody needs any more, out of some that the caller has read. May be repeated.
-- KEYS after those below: h:<name>, q:<name> of each entry
-- ARGV 1 where the entries are: 'records', 'index', 'completed' or 'patterns'
--      2 '1' to delete them, '0' only to count  3 field or member, 4 value or score, ...
-- returns how many
--
-- Prune the records before the index: holders and waiters keep a name alive. A lapsed entry stays for
-- FORGET_MS: its holder may revive it. An entry that has changed since it was read stays.

--keys records index fence past usual completed patterns due
--include clock
--include names
--include common
--include handover
--include change_patterns

-- A lapsed name is deleted this much later; until then its holder may still renew it. FORGET in
-- commands/admin.py is the same number.
local FORGET_MS = 60000
local deletes, oldest = ARGV[2] == '1', now() - FORGET_MS

-- A record whose holder or waiter is gone, or lapsed long ago.
local function prune_record(token, record, held, queue)
  local number, since = record:match('^(%d+) (%d+) ')
  if redis.call('HGET', records, token) ~= record then return false end
  local key = number == '0' and queue or held
  local score = redis.pcall('ZSCORE', key, token)
  local last = key == queue and since or score
  if type(score) == 'table' or score and tonumber(last) > oldest then return false end
  if not deletes then return true end
  noted = 0
  if score then
    drop(key, {token, score})
    pass_on(held, queue)
  else
    redis.call('HDEL', records, token)
  end
  return true
end

-- A name without holders and waiters, or whose last one lapsed long ago.
local function prune_name(name, _, held, queue)
  local expiry = redis.call('ZSCORE', index, name)
  if not expiry then return false end
  if tonumber(expiry) > oldest and redis.call('EXISTS', held, queue) > 0 then return false end
  if not deletes then return true end
  for _, key in ipairs({held, queue}) do
    -- pcall: a value of another type under our key is not ours to delete.
    drop(key, redis.pcall('ZRANGE', key, 0, -1, 'WITHSCORES'))
  end
  redis.call('ZREM', index, name)
  return true
end

local function prune_completed(name)
  local expiry = redis.call('ZSCORE', completed, name)
  if not expiry or tonumber(expiry) > now() then return false end
  if deletes then redis.call('ZREM', completed, name) end
  return true
end

local function prune_pattern(glob, value)
  if redis.call('HGET', patterns, glob) ~= value or not is_over(value) then return false end
  if deletes then drop_patterns({glob}) end
  return true
end

local prune = ({
  records = prune_record,
  index = prune_name,
  completed = prune_completed,
  patterns = prune_pattern,
})[ARGV[1]]
local pruned = 0
for i = 3, #ARGV, 2 do
  if prune(ARGV[i], ARGV[i + 1], KEYS[i + 6], KEYS[i + 7]) then pruned = pruned + 1 end
end
return pruned
