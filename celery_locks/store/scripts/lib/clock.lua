-- The server's clock. It is read once, and only if it is needed: most releases do not need it.

local micros -- set by now()
local function now()
  if not micros then
    local clock = redis.call('TIME')
    micros = clock[1] * 1000000 + clock[2]
  end
  return math.floor(micros / 1000)
end
