-- describe: some locks as they are now.
-- KEYS after those below: h:<name>, q:<name> of each lock
-- ARGV 1 '1': the holders that lapsed and are not forgotten yet, instead of the live ones, and no waiters
-- returns {now, lock...}, lock = {number of holders, {marker...}, number of parked messages,
--         [token, expiry, record]..., [token, ticket, record]...} with live entries only: what operators
--         set (overrides.lua, with the patterns that match), holders by expiry, then waiters in queue order
--         (of the first 100). The number of parked messages is that of the whole queue (count_parked.lua)

--keys records patterns
--include clock
--include names
--include overrides
--include patterns
--include count_parked

local function add_entry(lock, token, score, record)
  lock[#lock + 1] = token
  lock[#lock + 1] = score
  lock[#lock + 1] = record
end

local function describe_holders(held, first, last)
  local holders = redis.call('ZRANGEBYSCORE', held, first, last, 'WITHSCORES')
  local lock = {#holders / 2, {}, 0}
  for i = 1, #holders, 2 do
    add_entry(lock, holders[i], holders[i + 1], redis.call('HGET', records, holders[i]) or '')
  end
  return lock
end

-- A lock that nobody tried to acquire since a pattern was set has no marker of it yet, and one whose
-- pattern has ended may have it still.
local function describe_markers(held)
  local found = match_patterns(name_of(held))
  for _, marker in ipairs(live_markers(read_markers(held))) do
    if not marker:find('^~glob') then found[#found + 1] = marker end
  end
  return found
end

local function describe(held, queue)
  local lock = describe_holders(held, '(' .. now(), '(+inf')
  lock[2] = describe_markers(held)
  lock[3] = count_parked_behind(queue)
  local waiters = redis.call('ZRANGE', queue, 0, ENDS - 1, 'WITHSCORES')
  for i = 1, #waiters, 2 do
    local record = redis.call('HGET', records, waiters[i]) or ''
    local alive_until = record:match('^0 (%d+) ')
    if alive_until and tonumber(alive_until) > now() then
      if is_parked(waiters[i]) then lock[3] = lock[3] + 1 end
      add_entry(lock, waiters[i], waiters[i + 1], record)
    end
  end
  return lock
end

local reply = {now()}
for i = 3, #KEYS, 2 do
  reply[#reply + 1] = ARGV[1] == '1' and describe_holders(KEYS[i], '-inf', now()) or describe(KEYS[i], KEYS[i + 1])
end
return reply
