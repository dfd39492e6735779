-- force_release: the operator's verb; takes the lock from one holder, or from all of them.
-- ARGV 1 name  2 token, or '' for every holder  3 by whom  4 why
--      5 token of this question (again.lua)
-- returns {now, [token, expiry, record]...}: those it was taken from; their next renewal says so
--
-- What was done stands in the log (log.lua) together with the act itself: no act without it.
-- Whoever gets the lock next has a higher fence than those it was taken from.

--include common
--include again
--include ends
--include log

local before = answered(ARGV[5])
if before then return before end
local name = ARGV[1]
local held = root .. 'h:' .. name
local reply, gone = {now()}, {}
local holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
for i = 1, #holders, 2 do
  if ARGV[2] == '' or ARGV[2] == holders[i] then
    gone[#gone + 1] = holders[i]
    if tonumber(holders[i + 1]) > now() then
      reply[#reply + 1] = holders[i]
      reply[#reply + 1] = holders[i + 1]
      reply[#reply + 1] = redis.call('HGET', records, holders[i]) or ''
    else
      note_past('lapsed', name, holders[i], holders[i + 1], LAPSED)
    end
  end
end
if #reply > 1 then record_act('force_release', name, ARGV[3], ARGV[4], reply) end
for i = 2, #reply, 3 do
  if not reply[i]:find('^[-q]') then -- nobody renews those
    local ttl = tonumber(reply[i + 2]:match('^%d+ %d+ (%d+)') or 0)
    local note = #ARGV[3] .. ' ' .. ARGV[3] .. ARGV[4]
    redis.call('SET', root .. 'r:' .. reply[i], note, 'PX', math.max(2 * ttl, 60000))
  end
end
for _, token in ipairs(gone) do
  redis.call('ZREM', held, token)
  redis.call('HDEL', records, token)
end
pass_on(name)
return answer(ARGV[5], reply)
