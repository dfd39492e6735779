-- describe: some locks as they are now.
-- KEYS after those below: h:<name>, q:<name> of each lock
-- ARGV 1 '1': the holders that lapsed and are not forgotten yet, instead of the live ones, and no waiters
-- returns {now, lock...}, lock = {number of holders, [token, expiry, record]..., [token, ticket, record]...}
--         with live entries only: holders by expiry, then waiters in queue order (of the first 100)

--keys records
--include clock

local function add_entry(lock, token, score, record)
  lock[#lock + 1] = token
  lock[#lock + 1] = score
  lock[#lock + 1] = record
end

local function describe_holders(held, first, last)
  local holders = redis.call('ZRANGEBYSCORE', held, first, last, 'WITHSCORES')
  local lock = {#holders / 2}
  for i = 1, #holders, 2 do
    add_entry(lock, holders[i], holders[i + 1], redis.call('HGET', records, holders[i]) or '')
  end
  return lock
end

local function describe(held, queue)
  local lock = describe_holders(held, '(' .. now(), '+inf')
  local waiters = redis.call('ZRANGE', queue, 0, 99, 'WITHSCORES')
  for i = 1, #waiters, 2 do
    local record = redis.call('HGET', records, waiters[i]) or ''
    local alive_until = record:match('^0 (%d+) ')
    if alive_until and tonumber(alive_until) > now() then
      add_entry(lock, waiters[i], waiters[i + 1], record)
    end
  end
  return lock
end

local reply = {now()}
for i = 2, #KEYS, 2 do
  reply[#reply + 1] = ARGV[1] == '1' and describe_holders(KEYS[i], '-inf', now()) or describe(KEYS[i], KEYS[i + 1])
end
return reply
