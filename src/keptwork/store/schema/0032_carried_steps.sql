-- A step that was carried out along with another begins and ends in one write.

--: guards 8b2177f1fbd53863
