-- return_due: give messages back that poll_due.lua gave to a worker which cannot publish them. May be repeated.
-- ARGV tokens
-- returns how many

--keys due
--include clock

-- Another worker polls meanwhile.
local SOON_MS = 500

local returned = 0
for _, token in ipairs(ARGV) do
  returned = returned + redis.call('ZADD', due, 'XX', 'CH', now() + SOON_MS, token)
end
return returned
