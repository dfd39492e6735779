-- poll_due: take what workers have to do for parked messages (lib/park.lua), and leave it to others for some
-- seconds. A worker that dies before it is done leaves it to the next one.
-- ARGV 1 how many entries at most
-- returns {ms until the next entry is due or -1, {name...}, {token, number, message, job or '', repeat}...}:
--         locks to look at (wake_waiters.lua), and messages to publish, or with a job to discard because the
--         message of that job took their place, and then to confirm (confirm_wake.lua); repeat is 1 if
--         somebody took the message before and did not confirm it in time, else 0
-- Model: PollDue in Park.tla.

--keys due parked
--include clock

-- Longer than a publish takes; a worker that needs longer finds that another one has published it too.
local PUBLISH_MS = 5000
-- Marks the times that this script sets: those of others are whole numbers.
local TAKEN = 0.5

local names, reply = {}, {-1}
local entries = redis.call('ZRANGEBYSCORE', due, '-inf', now(), 'WITHSCORES', 'LIMIT', 0, ARGV[1])
for i = 1, #entries, 2 do
  local member, is_repeat = entries[i], entries[i + 1] % 1 == TAKEN and 1 or 0
  redis.call('ZADD', due, now() + PUBLISH_MS + TAKEN, member)
  if member:sub(1, 1) == 'n' then
    names[#names + 1] = member:sub(2)
  else
    local by, number, message = (redis.call('HGET', parked, member) or ''):match('^(%S+) (%d+) (.*)$')
    if by then
      reply[#reply + 1] = {member, number, message, by:match('^!(.*)') or '', is_repeat}
    else
      redis.call('ZREM', due, member)
    end
  end
end
local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
if first then reply[1] = math.max(0, first - now()) end
table.insert(reply, 2, names)
return reply
