-- force_release: an operator takes the lock from one holder, or from all of them.
-- ARGV 1 name  2 token, or '' for every holder  3 by whom  4 why
--      5 request id (saved_replies.lua)
-- returns {now, [token, expiry, record]...}: the holders that lost it; their next renewal tells them
--
-- The log entry (action_log.lua) is written in the same step: no action without its entry.
-- The next holder has a higher fence than those that lost the lock.

--include common
--include saved_replies
--include handover
--include action_log

local saved = saved_reply(ARGV[5])
if saved then return saved end
local name = ARGV[1]
local held = root .. 'h:' .. name
local reply, removed = {now()}, {}
local holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
for i = 1, #holders, 2 do
  if ARGV[2] == '' or ARGV[2] == holders[i] then
    removed[#removed + 1] = holders[i]
    if tonumber(holders[i + 1]) > now() then
      reply[#reply + 1] = holders[i]
      reply[#reply + 1] = holders[i + 1]
      reply[#reply + 1] = redis.call('HGET', records, holders[i]) or ''
    else
      note_past('lapsed', name, holders[i], holders[i + 1], LAPSED)
    end
  end
end
if #reply > 1 then log_action('force_release', name, ARGV[3], ARGV[4], reply) end
for i = 2, #reply, 3 do
  if not reply[i]:find('^[-q]') then -- nobody renews these
    local ttl = tonumber(reply[i + 2]:match('^%d+ %d+ (%d+)') or 0)
    local note = #ARGV[3] .. ' ' .. ARGV[3] .. ARGV[4]
    redis.call('SET', root .. 'r:' .. reply[i], note, 'PX', math.max(2 * ttl, 60000))
  end
end
for _, token in ipairs(removed) do
  redis.call('ZREM', held, token)
  redis.call('HDEL', records, token)
end
pass_on(name)
return save_reply(ARGV[5], reply)
